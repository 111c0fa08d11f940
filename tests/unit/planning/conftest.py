"""A project of its own for every planner test, and the command run in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run
from shardwright.layout.overrides import ENV_RULES

Deploy = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for rule in ENV_RULES:
        monkeypatch.delenv(rule.variable, raising=False)
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def deploy(project: Path, capsys: pytest.CaptureFixture[str]) -> Deploy:
    """Run `deploy ...` and return status, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        status = run(list(words))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def plan_json(deploy: Deploy) -> Callable[..., Any]:
    def call(*words: str) -> Any:
        status, out, err = deploy("plan", *words, "--json")
        assert status == 0, err
        return json.loads(out)

    return call
