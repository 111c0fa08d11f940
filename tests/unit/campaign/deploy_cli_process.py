"""Run `deploy` as a process that can be killed at a boundary of its work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.deploy_cli import Deploy, Outcome

DRIVER = Path(__file__).parent / "killed_driver.py"


class Killable(Deploy):
    """`deploy(...)` runs to its end; `killed_at` and `killed_after` die by SIGKILL at a boundary."""

    def __init__(self, project: Path, **settings: str) -> None:
        super().__init__(project, **settings)
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def killed_at(self, boundary: int, *words: str) -> Outcome:
        """Dead at its n-th boundary."""
        return self._killed(KILL_AT=str(boundary), words=words)

    def killed_after(self, deed: str, *words: str) -> Outcome:
        """Dead as soon as a deed (`stop`, `start`, ...) is in the audit."""
        return self._killed(KILL_AFTER=deed, words=words)

    def _killed(self, *, words: tuple[str, ...], **where: str) -> Outcome:
        done = subprocess.run(
            [sys.executable, str(DRIVER), *words],
            env={**self.environment, **where},
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)
