"""What `deploy cmd` prints, read back, is a layout that renders the same container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardwright.campaign.importing.launch import read_launch
from shardwright.campaign.importing.layout_text import layout_text
from shardwright.campaign.request import Request, prepare
from shardwright.connect.project import open_project
from shardwright.facts.engine_tables import all_tables
from shardwright.render.command import render
from shardwright.render.shell import shell_lines
from tests.unit.helpers import ROOT

SHIPPED = sorted(file.stem for file in (ROOT / "configs" / "layouts").glob("*.yaml"))
LAUNCHES = sorted(file.stem for file in (ROOT / "tests" / "launches").glob("*.yaml"))
# These run a script of their image; nobody outside of it knows the engine's flags.
SCRIPTS = {"L02", "L04", "L05"}


def aliases() -> dict[str, str]:
    return {name: flag.name for table in all_tables(open_project({})) for flag in table.flags for name in flag.aliases}


def groups(request: Request) -> list[tuple[str, ...]]:
    """The command line by parts, without what only names the deployment and without its secrets."""
    named = ("--label", "--name")
    parts = [part.tokens for part in render(request.deployment).parts]
    tokens = [part for part in parts if not any(word in part for word in named)]
    return sorted(part for part in tokens if not any("secrets" in word or "/deploy.env" in word for word in part))


def read_back(request: Request, folder: Path, version: str) -> Request:
    text = shell_lines(render(request.deployment))
    launch = read_launch(text, aliases(), name="again", version=version)
    file = folder / "again.yaml"
    file.write_text(layout_text(launch.layout, "test"), encoding="utf-8")
    return prepare(str(file), dict(os.environ))


@pytest.mark.parametrize("name", [*SHIPPED, *(launch for launch in LAUNCHES if launch not in SCRIPTS)])
def test_a_command_line_that_is_read_back_renders_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_PROJECT", str(ROOT if name in SHIPPED else tmp_path))
    source = name if name in SHIPPED else str(ROOT / "tests" / "launches" / f"{name}.yaml")
    request = prepare(source, dict(os.environ), ("secrets=[]",))
    again = read_back(request, tmp_path, request.deployment.engine.vllm)
    assert groups(again) == groups(request)
