"""Neighbours of the known situations around the engine: flags, variables, cards, host, container, hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run

BASE: dict[str, Any] = {
    "schema": "shardwright/v1",
    "name": "case",
    "model": {"path": "/models/checkpoint"},
    "engine": {"image": "engine:1.0", "vllm": "0.30.0"},
    "container": {"ipc": "host"},
}
CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "host_neighbours.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["title"]))
def test_a_neighbour_around_the_engine_has_its_right_outcome(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = {**BASE, **case["layout"]}
    for key in ("engine", "container"):
        layout[key] = {**BASE[key], **case["layout"].get(key, {})}
    (tmp_path / "case.yaml").write_text(json.dumps(layout))
    (tmp_path / "facts.json").write_text(json.dumps(case.get("facts", {})))
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    run(["check", str(tmp_path / "case.yaml"), "--facts", str(tmp_path / "facts.json"), "--json"])
    printed = capsys.readouterr().out
    assert json.loads(printed)["verdict"] == case["outcome"], printed
    assert case.get("says", "") in printed
