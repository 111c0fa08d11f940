"""The NVIDIA cards of this host: asked of the driver's management library, else of `nvidia-smi`."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from shardwright.facts.host import Cards, Gpu, LinkKind, read_gpus, read_links

_GIB = 1 << 30


def read_cards() -> Cards:
    """Cards, links and driver."""
    return read_nvml() or Cards(read_gpus(), read_links())


def read_nvml() -> Cards | None:
    """What the management library says; None where it is absent, too old or answers with an error."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(_gpu(pynvml, handle) for handle in handles)
        return Cards(gpus, _links(pynvml, handles), _text(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    name = _text(nvml.nvmlDeviceGetName(handle))
    return Gpu(name, f"{major}.{minor}", memory.total / _GIB, memory.free / _GIB)


def _links(nvml: Any, handles: list[Any]) -> LinkKind | None:
    """Whether peer-to-peer over NVLink works, pair by pair; a driver that cannot say so is asked by its tool."""
    if len(handles) < 2:
        return None
    try:
        joined = [
            nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK
            for one, other in combinations(handles, 2)
        ]
    except nvml.NVMLError:
        return read_links()
    return "all" if all(joined) else "pairs" if any(joined) else "pcie"


def _text(value: str | bytes) -> str:
    """Older releases of the library's own package give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
