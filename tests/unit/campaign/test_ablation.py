"""With and without: the sound engine runs again at the end, also after a call that was killed in between."""

from __future__ import annotations

import pytest
from campaign_stage import Stage, hook
from deploy_cli_process import Killable

from shardwright.campaign.ablate import Ablation, ablate
from shardwright.campaign.marks import read_mark, write_mark
from shardwright.campaign.request import Request, prepare
from shardwright.connect.project import Project, shipped_data
from shardwright.errors import DeployError

GARBLED = "env.STUB_MODE=garbled"


def asked(stage: Stage, *sets: str) -> Request:
    project = Project(stage.folder, (stage.folder, shipped_data()))
    return prepare("stub", {"DEPLOY_PYTHON": str(stage.python)}, sets, project=project)


def tried(stage: Stage, without: str) -> Ablation:
    """`ablate` of the stand-in; what `without` changes takes the part of the patch that is left out."""
    return ablate(asked(stage), asked(stage, without), {}, "quick")


@pytest.mark.parametrize(
    ("without", "bearing"),
    [
        (GARBLED, "LOAD_BEARING"),
        ("env.STUB_MODE=dies", "LOAD_BEARING"),
        ("serve.max_model_len=4096", "NOT_LOAD_BEARING"),
    ],
)
def test_the_verdict_without_it_says_whether_it_bears(
    stage: Stage, deploy: Killable, without: str, bearing: str
) -> None:
    instance = deploy.ok("up", "stub", "--json").data["instance"]
    assert tried(stage, without).bearing == bearing
    assert stage.running() == [instance]


def test_a_refused_start_says_nothing_about_the_patch(stage: Stage, deploy: Killable) -> None:
    instance = deploy.ok("up", "stub", "--json").data["instance"]
    hook(stage, "pre-start", f'[ "$DEPLOY_INSTANCE" = "{instance}" ]')
    with pytest.raises(DeployError, match="pre-start says no"):
        tried(stage, GARBLED)
    assert stage.running() == [instance]


@pytest.mark.parametrize("left", ["nothing", "the other"])
def test_after_a_kill_the_next_call_begins_with_the_patch(stage: Stage, deploy: Killable, left: str) -> None:
    instance = deploy.ok("up", "stub", "--json").data["instance"]
    write_mark(stage.state, "ablate", "stub", {"digest": asked(stage).deployment.digest})
    deploy.ok("stop", "stub")
    if left == "the other":
        deploy.ok("start", "stub", "--set", GARBLED)
    assert tried(stage, GARBLED).bearing == "LOAD_BEARING"
    assert stage.running() == [instance]
    assert read_mark(stage.state, "ablate", "stub") == {}


def test_what_does_not_run_is_not_ablated(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    deploy.ok("stop", "stub")
    with pytest.raises(DeployError, match="does not run"):
        tried(stage, GARBLED)
