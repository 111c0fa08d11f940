"""What the engine's own parser says is told from what keeps it from being asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from shardwright.cli.main import run

LAYOUT = {
    "schema": "shardwright/v1",
    "name": "case",
    "runtime": "local",
    "model": {"path": "org/name"},
    "engine": {"vllm": "0.30.0", "platform": "cpu"},
}


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    file = tmp_path / "case.yaml"
    file.write_text(yaml.safe_dump(LAYOUT))
    return file


def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An interpreter that does what `script` says, whatever it is asked."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setenv("DEPLOY_PYTHON", str(python))


def test_an_accepted_command_line_is_no_finding_against_the_layout(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine(tmp_path, monkeypatch, "echo command line accepted")
    assert run(["check", str(layout), "--in-image"]) == 0
    assert "takes the command line" in capsys.readouterr().out


def test_a_refusal_of_the_engine_refuses_the_layout_with_its_words(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine(tmp_path, monkeypatch, "echo usage >&2; echo 'vllm serve: error: unrecognized arguments: --x' >&2; exit 2")
    assert run(["check", str(layout), "--in-image", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"][0]
    assert (found["gate"], found["verdict"]) == ("engine-parser", "reject")
    assert found["message"].endswith("refuses: unrecognized arguments: --x")


def test_an_overlay_that_breaks_the_import_is_not_taken_for_an_accepted_command_line(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine(tmp_path, monkeypatch, "echo 'ImportError: cannot import name x' >&2; exit 1")
    assert run(["check", str(layout), "--in-image"]) == 1
    assert "ImportError: cannot import name x" in capsys.readouterr().out


def test_an_engine_that_says_nothing_is_an_error_and_no_verdict(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine(tmp_path, monkeypatch, "exit 3")
    assert run(["check", str(layout), "--in-image"]) == 1
    assert "gave no answer (status 3)" in capsys.readouterr().err


def test_an_unknown_version_is_not_judged_by_a_neighbours_table(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine(tmp_path, monkeypatch, "exit 1")
    arguments = ["check", str(layout), "--set", "engine.vllm=0.29.0", "--set", "serve.no_such_flag=1", "--json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"
