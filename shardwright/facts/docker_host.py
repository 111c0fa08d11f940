"""What the Docker engine of this host can give to a container, and where it keeps its images."""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec import Struct

from shardwright.connect.docker_sdk import DockerEngine, EngineInfo
from shardwright.errors import DeployError

_HOOK = "nvidia-container-runtime-hook"
_CDI_KIND = "nvidia.com/gpu"


class DockerHost(Struct, frozen=True):
    """`runtimes`: the engine's OCI runtimes, with `nvidia` also where it gives cards without such a runtime.

    `root` is the folder of its images and containers.
    """

    runtimes: tuple[str, ...]
    root: Path


def read_docker_host() -> DockerHost | None:
    """As the engine itself says it; None where none answers."""
    try:
        info = DockerEngine().info()
    except DeployError:
        return None
    return docker_host(info, has_hook=shutil.which(_HOOK) is not None)


def docker_host(info: EngineInfo, *, has_hook: bool) -> DockerHost:
    """A registered runtime is one of three ways to cards: --gpus needs the toolkit's hook alone, and CDI neither."""
    by_cdi = any(name.partition("=")[0] == _CDI_KIND for name in info.devices)
    named = {*info.runtimes, *(("nvidia",) if has_hook or by_cdi else ())}
    return DockerHost(tuple(sorted(named)), Path(info.root))
