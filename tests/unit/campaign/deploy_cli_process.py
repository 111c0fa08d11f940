"""Run `deploy` as a process that can be killed at a boundary of its work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.deploy_cli import Deploy, Outcome

DRIVER = Path(__file__).parent / "killed_driver.py"


class Killable(Deploy):
    """`deploy(...)` runs to its end; `deploy.killed_at(n, ...)` dies by SIGKILL at its n-th boundary."""

    def __init__(self, project: Path, **settings: str) -> None:
        super().__init__(project, **settings)
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def killed_at(self, boundary: int, *words: str, timeout_s: int = 120) -> Outcome:
        environment = {**self.environment, "KILL_AT": str(boundary)}
        done = subprocess.run(
            [sys.executable, str(DRIVER), *words],
            env=environment,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)
