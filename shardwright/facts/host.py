"""Facts of this host: its GPUs and their links, memory, disk, ports, interfaces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

LinkKind = Literal["all", "pairs", "pcie"]
"""`all`: every pair of cards has NVLink. `pairs`: some have. `pcie`: none has."""

_GIB = 1 << 30
_ASK_TIMEOUT_S = 20


class Gpu(Struct, frozen=True):
    """One card; memory in GiB as the driver reports it, `free_gib` None where nobody looked."""

    name: str
    compute_capability: str
    memory_gib: float
    free_gib: float | None = None


class Cards(Struct, frozen=True):
    """The NVIDIA cards of one machine. None: nobody could be asked. `links` is None too where there is one card."""

    gpus: tuple[Gpu, ...] | None = None
    links: LinkKind | None = None
    driver: str | None = None


class Host(Struct, frozen=True):
    """The machine that the engine will run on. None or empty: nobody looked.

    `live` says that this very machine was asked, as against a facts file. `listening`: TCP ports in use.
    `runtimes`: OCI runtimes of the Docker engine, with `nvidia` wherever it can give cards. `disk_free_gib`: the least
    of where project, model and images lie. `missing`: mount sources, given relative to the project, that are not
    there. `outside`: files below a mount source that are links to the value, absolute or from where the link lies.
    `loose`: files or folders that replace engine code and that others may write. `caches`: compile caches below a
    mounted folder and what each was made for, such as tp4-pp2.
    """

    live: bool = False
    memory_gib: float | None = None
    shm_gib: float | None = None
    disk_free_gib: float | None = None
    driver: str | None = None
    runtimes: tuple[str, ...] = ()
    selinux: str | None = None
    listening: tuple[int, ...] = ()
    interfaces: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    outside: tuple[tuple[str, str], ...] = ()
    loose: tuple[str, ...] = ()
    caches: tuple[tuple[str, str], ...] = ()


def read_gpus() -> tuple[Gpu, ...] | None:
    """The NVIDIA GPUs of this host by `nvidia-smi`; None where that tool is absent or fails."""
    answer = _ask_nvidia("--query-gpu=name,compute_cap,memory.total,memory.free", "--format=csv,noheader,nounits")
    return parse_gpus(answer) if answer is not None else None


def parse_gpus(csv: str) -> tuple[Gpu, ...] | None:
    """GPUs from `nvidia-smi` CSV lines `name, capability, MiB[, free MiB]`; None when a line does not read."""
    gpus = []
    for line in csv.splitlines():
        fields = [field.strip() for field in line.split(",")]
        sizes = [field for field in fields[-2:] if field.isdigit()]
        head = fields[: len(fields) - len(sizes)]
        if not sizes or len(head) < 2:
            return None
        memory, free = int(sizes[0]) / 1024, int(sizes[1]) / 1024 if len(sizes) == 2 else None
        gpus.append(Gpu(", ".join(head[:-1]), head[-1], memory, free))
    return tuple(gpus)


def read_links() -> LinkKind | None:
    """How the cards are joined, by `nvidia-smi topo -m`; None where it cannot be asked or there is one card."""
    answer = _ask_nvidia("topo", "-m")
    return parse_links(answer) if answer is not None else None


def parse_links(matrix: str) -> LinkKind | None:
    """The kind of links from the matrix of `nvidia-smi topo -m`, whose cells are X, NV12, SYS, PHB and so on."""
    rows = [line.split() for line in matrix.splitlines() if line.startswith("GPU")]
    cells = [cell for row in rows for cell in row[1 : 1 + len(rows)] if cell != "X"]
    if not cells:
        return None
    joined = [cell.startswith("NV") for cell in cells]
    return "all" if all(joined) else "pairs" if any(joined) else "pcie"


def read_host(disks: Sequence[Path], publish_port: int | None, driver: str | None = None) -> Host:
    """Memory, /dev/shm, least free space of `disks`, driver, SELinux, interfaces, and whether the port is in use.

    `disks` are folders that need not be there yet. `driver` is what the driver itself said.
    """
    free = [size for size in (_free_gib(disk) for disk in disks) if size is not None]
    return Host(
        live=True,
        memory_gib=_memory_gib(),
        shm_gib=_shm_gib(),
        disk_free_gib=min(free, default=None),
        driver=driver or (_text(Path("/sys/module/nvidia/version")) or "").strip() or None,
        selinux=_selinux(),
        listening=(publish_port,) if publish_port is not None and _in_use(publish_port) else (),
        interfaces=_interfaces(),
    )


def loose_paths(directory: Path) -> tuple[str, ...]:
    """Files and folders that replace engine code and that group or others may write; empty where there are none."""
    found = [str(directory)] if directory.is_file() and directory.stat().st_mode & 0o022 else []
    for folder, _, names in os.walk(directory):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            if not path.is_symlink() and path.stat().st_mode & 0o022:
                found.append(str(path))
    return tuple(sorted(found))


def links_outside(source: Path) -> tuple[tuple[str, str], ...]:
    """Direct entries of a mounted folder that are links to places outside it, where the container cannot follow."""
    found = []
    try:
        entries = sorted(source.iterdir())
        root = source.resolve()
        for entry in entries:
            if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                value = str(entry.readlink())
                found.append((str(entry), value if not value.startswith("/") else str(entry.resolve())))
    except OSError:
        return ()
    return tuple(found)


def _ask_nvidia(*arguments: str) -> str | None:
    import shutil
    import subprocess

    if shutil.which("nvidia-smi") is None:
        return None
    try:
        result = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout


def _memory_gib() -> float | None:
    for line in (_text(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / _GIB
    return None


def _shm_gib() -> float | None:
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return None
    return state.f_blocks * state.f_frsize / _GIB


def _free_gib(folder: Path) -> float | None:
    """Where the folder lies or would be made; None where this user may not look."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        state = os.statvfs(there)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize / _GIB


def _selinux() -> str | None:
    state = _text(Path("/sys/fs/selinux/enforce"))
    return None if state is None else "enforcing" if state.strip() == "1" else "permissive"


def _interfaces() -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in Path("/sys/class/net").iterdir()))
    except OSError:
        return ()


def _in_use(port: int) -> bool:
    import errno
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
