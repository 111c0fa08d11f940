"""Facts of this host: its GPUs."""

from __future__ import annotations

from msgspec import Struct


class Gpu(Struct, frozen=True):
    """One card; memory in GiB as the driver reports it."""

    name: str
    compute_capability: str
    memory_gib: float


def read_gpus() -> tuple[Gpu, ...] | None:
    """The NVIDIA GPUs of this host by `nvidia-smi`; None where that tool is absent or fails."""
    import shutil
    import subprocess

    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_gpus(result.stdout)


def parse_gpus(csv: str) -> tuple[Gpu, ...] | None:
    """GPUs from `nvidia-smi` CSV lines `name, capability, MiB`; None when a line does not read."""
    gpus = []
    for line in csv.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 2)]
        if len(fields) != 3 or not fields[2].isdigit():
            return None
        gpus.append(Gpu(fields[0], fields[1], int(fields[2]) / 1024))
    return tuple(gpus)
