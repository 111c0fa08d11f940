"""An engine whose start was killed before it was noted is found, and said no more of than is known."""

from __future__ import annotations

import json
from dataclasses import replace

from campaign_stage import Stage, hook
from deploy_cli_process import Killable

from shardwright.campaign.launch import started_record
from shardwright.campaign.records import write_record
from shardwright.campaign.request import prepare
from shardwright.connect.project import open_project
from shardwright.runtime.base import EngineState


def start_unnoted(stage: Stage, deploy: Killable) -> tuple[str, str]:
    """Instance and digest of an engine that runs and is on no record."""
    deploy.ok("start", "stub")
    (instance,) = stage.running()
    file = stage.state / "started" / "stub.json"
    digest = json.loads(file.read_text())["digest"]
    file.unlink()
    return instance, digest


def told(stage: Stage, deploy: Killable, *words: str) -> tuple[str, str]:
    """Instance and digest that the hook before a stop is told of."""
    hook(stage, "pre-stop", 'echo "$DEPLOY_INSTANCE,$DEPLOY_DIGEST" > told')
    deploy.ok(*words)
    instance, digest = (stage.folder / "told").read_text().strip().split(",")
    return instance, digest


def test_it_is_stopped_by_its_layout(stage: Stage, deploy: Killable) -> None:
    instance, digest = start_unnoted(stage, deploy)
    assert deploy("logs", "stub").status == 0
    assert told(stage, deploy, "stop", "stub") == (instance, digest)
    assert stage.running() == []


def test_one_of_a_layout_that_was_changed_since_is_not_given_the_digest_of_now(stage: Stage, deploy: Killable) -> None:
    instance, _ = start_unnoted(stage, deploy)
    stage.layout("stale-index")
    assert told(stage, deploy, "stop", "stub") == (instance, "")
    assert stage.running() == []


def test_another_deployment_takes_its_place_and_the_hook_is_told_the_same(stage: Stage, deploy: Killable) -> None:
    instance, _ = start_unnoted(stage, deploy)
    stage.layout("stale-index")
    hook(stage, "pre-stop", 'echo "$DEPLOY_INSTANCE,$DEPLOY_DIGEST" > told')
    deploy("up", "stub", "--replace")
    assert (stage.folder / "told").read_text().strip() == f"{instance},"
    assert instance not in stage.running()


def test_what_it_would_have_noted_names_the_engine_that_is_there(stage: Stage) -> None:
    environ = {"DEPLOY_PROJECT": str(stage.folder)}
    deployment = prepare("stub", environ, [], project=open_project(environ)).deployment
    mine = EngineState(deployment.instance_name, "stub", "running", None, 0, 5.0, "1")
    record = started_record(stage.state, deployment, mine)
    assert (record.instance, record.digest, record.started_at) == (mine.name, deployment.digest, 5.0)
    other = started_record(stage.state, deployment, replace(mine, name="stub-other", started_at=None))
    assert (other.instance, other.digest, other.started_at) == ("stub-other", "", 0.0)
    write_record(stage.state, deployment, 7.0)
    assert started_record(stage.state, deployment, mine).started_at == 7.0
