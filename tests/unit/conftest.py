"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.helpers import OVERRIDES, Result


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Result]:
    """`deploy` in this process: `cli("cmd", "NAME", TP_SIZE="8")`. No override of the caller's shell counts, and no
    tool that would look at this machine is found."""
    from shardwright.cli.main import run

    def call(*words: str, **settings: str) -> Result:
        for name in OVERRIDES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("shardwright.facts.nvml.read_nvml", lambda: None)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = run(list(words))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call
