"""Every known situation has its right outcome through the command: a layout and facts in, findings out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwright.cli.main import run

DATA = yaml.safe_load((Path(__file__).parent / "gate_cases.yaml").read_text())
STATUS = {"accept": 0, "warn": 0, "reject": 1, "usage": 64}


def merged(base: Any, change: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(change, Mapping):
        return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}
    return change


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: f"{case['id']} {case['title']}")
def test_a_known_situation_has_its_right_outcome(
    case: dict[str, Any],
    tmp_path: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    layout = tmp_path / "case.yaml"
    layout.write_text(yaml.safe_dump(merged(DATA["base"], case["layout"]), sort_keys=False))
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(case.get("facts", {})))
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    for name, value in case.get("environ", {}).items():
        monkeypatch.setenv(name, value)
    given = [] if case.get("live") else ["--facts", str(facts)]
    status = run(["check", str(layout), *given, "--json"])
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert status == STATUS[case["outcome"]], text
    if case["outcome"] != "usage":
        assert json.loads(printed.out)["verdict"] == case["outcome"], text
    assert [words for words in case.get("says", []) if words not in text] == []
    assert [words for words in case.get("silent", []) if words in text] == []


def test_no_case_is_lost() -> None:
    told = {case["id"].partition("-")[0] for case in DATA["cases"]}
    assert len(told | set(DATA["elsewhere"])) == DATA["total"]
    assert told.isdisjoint(DATA["elsewhere"])
