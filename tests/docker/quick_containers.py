"""What the docker tests share: the docker command, and waiting for a state."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import EngineState

Build = Callable[..., Deployment]

SERVE_FOREVER = "import time; print('serving', flush=True); time.sleep(600)"


def docker(*arguments: str) -> str:
    """One docker command that must work; its output."""
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def containers_of(project: Path) -> list[str]:
    """Names of all containers of a project, created ones included."""
    return docker(
        "ps", "--all", "--filter", f"label=shardwright.project={project}", "--format", "{{.Names}}"
    ).splitlines()


def eventually(read: Callable[[], EngineState], accept: Callable[[EngineState], bool], timeout_s: float = 20) -> Any:
    """The first state that is accepted; fails with the last one."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = read()
        if accept(state):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
