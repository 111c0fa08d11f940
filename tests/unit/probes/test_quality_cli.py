"""The verb `quality`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shardwright.cli.main import run as deploy
from shardwright.probes.faulty.server import FaultyServer
from tests.unit.helpers import BASE, write_layout


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_healthy_server_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer() as faulty:
        assert deploy(["quality", "--base-url", faulty.base_url, "--json", "--output", "t.jsonl"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["verdict"], content["failures"], content["engine_only"]) == ("PASS", 0, False)
    assert content["echo"]["echo-c8"]["ids"] == 40


def test_a_fault_exits_2_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer("hidden-length") as faulty:
        assert deploy(["quality", "--base-url", faulty.base_url, "--engine-only", "--output", "t.jsonl"]) == 2
    shown = capsys.readouterr()
    assert re.search(r"tool-cut-off: whole, cut off after \d\d tokens, finish_reason is 'tool_calls'", shown.out)
    assert "echo" not in shown.out
    assert "requests of at most 1024 tokens" in shown.err


def test_a_fault_that_the_layout_knows_does_not_fail_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = "probes: {quality: {known: {tool-cut-off: seen before}}}\nserve: {served_model_name: faulty-model}\n"
    write_layout(tmp_path, BASE + known)
    with FaultyServer("hidden-length") as faulty:
        assert deploy(["quality", "demo", "--base-url", faulty.base_url, "--engine-only", "--output", "t.jsonl"]) == 0
    assert "not held against this deployment: seen before" in capsys.readouterr().out


def test_a_dead_server_exits_4() -> None:
    with FaultyServer("dead-engine") as faulty:
        assert deploy(["quality", "--base-url", faulty.base_url, "--output", "t.jsonl"]) == 4
