"""A gate's findings for a layout and the facts of a machine, through the same path as the command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwright.campaign.request import prepare
from shardwright.gates.finding import Finding

BASE: dict[str, Any] = {
    "schema": "shardwright/v1",
    "name": "case",
    "model": {"path": "/models/checkpoint"},
    "engine": {"image": "engine:1.0", "vllm": "0.30.0"},
    "container": {"ipc": "host"},
}

Ask = Callable[..., list[Finding]]


def merged(base: Any, change: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(change, Mapping):
        return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}
    return change


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))

    def findings(layout: dict[str, Any], facts: dict[str, Any], gate: str | None = None) -> list[Finding]:
        file = tmp_path / "case.yaml"
        file.write_text(yaml.safe_dump(merged(BASE, layout), sort_keys=False))
        given = tmp_path / "facts.json"
        given.write_text(json.dumps(facts))
        found = prepare(str(file), dict(os.environ), facts_file=given).assessment.findings
        return [finding for finding in found if gate is None or finding.gate == gate]

    return findings
