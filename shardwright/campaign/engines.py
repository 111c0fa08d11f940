"""Which runtime a deployment uses."""

from __future__ import annotations

from pathlib import Path

from shardwright.runtime.base import Runtime


def runtime_of(kind: str, project_root: Path) -> Runtime:
    """The runtime called `docker` or `local`; it is reached when it is first asked."""
    if kind == "local":
        from shardwright.runtime.local import LocalRuntime

        return LocalRuntime(project_root)
    from shardwright.runtime.docker import DockerRuntime

    return DockerRuntime(str(project_root))
