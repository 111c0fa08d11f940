"""Run the `deploy` command as its user does: a process of its own, in a project folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_OVERRIDES = ("TP_SIZE", "PP_SIZE", "PP_LAYER_PARTITION", "MAX_MODEL_LEN", "SPEC_METHOD", "IMAGE", "PORT")


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str

    @property
    def data(self) -> Any:
        return json.loads(self.stdout)


class Deploy:
    """`deploy VERB …` with this interpreter, writing below `project`; `settings` go into the environment."""

    def __init__(self, project: Path, **settings: str) -> None:
        self.project = project
        base = {name: value for name, value in os.environ.items() if name not in _OVERRIDES}
        self.environment = {**base, "DEPLOY_PROJECT": str(project), "DEPLOY_PYTHON": sys.executable, **settings}

    def __call__(self, *words: str, timeout_s: int = 300) -> Outcome:
        command = [sys.executable, str(ROOT / "deploy.py"), *words]
        done = subprocess.run(
            command, env=self.environment, cwd=self.project, capture_output=True, text=True, timeout=timeout_s
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, timeout_s: int = 300) -> Outcome:
        """The same, for a call that must succeed."""
        outcome = self(*words, timeout_s=timeout_s)
        assert outcome.status == 0, f"deploy {' '.join(words)} -> {outcome.status}\n{outcome.stdout}\n{outcome.stderr}"
        return outcome
