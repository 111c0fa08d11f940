"""A project with one layout whose engine is a stand-in behind the real local runtime."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from shardwright.runtime.local import LocalRuntime

STUB = Path(__file__).parent / "stub_engine"
ROOT = Path(__file__).resolve().parents[3]


class Stage:
    """One project folder with one layout, `stub`; `mode` is how its engine behaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "model").mkdir()
        self.python = folder / "bin" / "python"
        self.python.parent.mkdir()
        # The interpreter of the tests, with the stand-in where an installed vllm would be found.
        paths = os.pathsep.join((str(STUB), str(ROOT)))
        self.python.write_text(
            f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{paths}" exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.layout()

    @property
    def state(self) -> Path:
        return self.folder / ".deploy"

    def layout(self, mode: str = "healthy", **keys: Any) -> None:
        """Write the layout; another `mode` makes another deployment."""
        content: dict[str, Any] = {
            "schema": "shardwright/v1",
            "name": "stub",
            "status": "ready",
            "runtime": "local",
            "model": {"path": str(self.folder / "model")},
            "engine": {"vllm": "0.30.0", "platform": "cpu", "python": str(self.python)},
            "container": {"publish": f"127.0.0.1:{self.port}:8000"},
            "serve": {"served_model_name": "faulty-model", "max_model_len": 8192},
            "env": {"STUB_MODE": mode},
            "probes": {"not_applicable": dict.fromkeys(UNASKED, "not what this test is about")},
            "wait": {"timeout_s": 60},
        }
        file = self.folder / "configs" / "layouts" / "stub.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content | keys))

    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").glob("*"))

    def running(self) -> list[str]:
        states = LocalRuntime(self.folder).instances("stub")
        return [state.name for state in states if state.status == "running"]

    def instances(self) -> list[str]:
        return [state.name for state in LocalRuntime(self.folder).instances("stub")]


def hook(stage: Stage, moment: str, script: str) -> None:
    """Put a shell script where the hook of this moment is looked for."""
    file = stage.folder / "hooks" / moment
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


UNASKED = ("quality", "degen", "needle", "speed", "repeat", "degen-long", "parity")
