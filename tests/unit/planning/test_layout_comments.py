"""The pool sizes that the comments of shipped layouts give are those that the planner computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli.main import run

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("split", "pool"), [("22,20,20,16", 1_162_496), ("18,20,20,20", 756_416)])
def test_the_million_token_layout_says_what_the_planner_says(
    split: str, pool: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{pool:,}" in (ROOT / "configs" / "layouts" / "glm53-tp2pp4.yaml").read_text()
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PP_LAYER_PARTITION", split)
    run(["plan", "glm53-tp2pp4", "--json"])
    assert json.loads(capsys.readouterr().out)["pool_tokens"] == pool
