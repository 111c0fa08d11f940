"""A project whose engine is a stand-in behind the real local runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign_stage import Stage
from deploy_cli_process import Killable

from shardwright.runtime.local import LocalRuntime


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    runtime = LocalRuntime(tmp_path)
    for state in runtime.instances():
        runtime.stop(state.name, 0)


@pytest.fixture
def deploy(stage: Stage) -> Killable:
    return Killable(stage.folder, DEPLOY_PYTHON=str(stage.python))
