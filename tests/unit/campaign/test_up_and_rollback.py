"""Up, verdict, rollback, on a stand-in engine behind the real local runtime."""

from __future__ import annotations

import json

from campaign_stage import Stage
from deploy_cli_process import Killable


def test_a_healthy_engine_is_brought_up_and_accepted_with_evidence(stage: Stage, deploy: Killable) -> None:
    outcome = deploy.ok("up", "stub", "--json")
    assert outcome.data["verdict"] == "PASS", outcome.stderr
    assert stage.running() == [outcome.data["instance"]]
    (run,) = stage.runs()
    assert str(run) == outcome.data["run"]
    names = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert {
        "manifest.json",
        "command.json",
        "image.json",
        "gates.json",
        "plan.json",
        "engine.log",
        "seal.json",
    } <= names
    assert {"trials/smoke.jsonl", "reports.json", "verdict.json", "metrics-before.txt", "metrics-after.txt"} <= names
    assert deploy.ok("evidence", "verify", str(run)).stdout.endswith("follows from its trials\n")
    verbs = [row["verb"] for row in deploy.ok("audit", "stub", "--json").data]
    assert verbs == ["start", "verdict"]


def test_up_again_takes_what_runs_and_asks_anew(stage: Stage, deploy: Killable) -> None:
    first = deploy.ok("up", "stub", "--json").data
    second = deploy.ok("up", "stub", "--json").data
    assert second["instance"] == first["instance"]
    assert second["run"] != first["run"]
    assert len(stage.running()) == 1


def test_an_engine_that_dies_leaves_its_log_and_the_reason(stage: Stage, deploy: Killable) -> None:
    stage.layout("dies")
    outcome = deploy("up", "stub")
    assert outcome.status == 1
    assert "Traceback" not in outcome.stderr
    (run,) = stage.runs()
    assert "Engine core initialization failed" in (run / "engine.log").read_text()
    assert json.loads((run / "refused.json").read_text())["what"]
    assert (run / "seal.json").exists()


def test_another_deployment_is_not_stopped_unasked(stage: Stage, deploy: Killable) -> None:
    first = deploy.ok("up", "stub", "--json").data["instance"]
    stage.layout(serve={"served_model_name": "faulty-model", "max_model_len": 4096})
    refused = deploy("up", "stub")
    assert refused.status == 1
    assert "--replace" in refused.stderr
    assert stage.running() == [first]
    second = deploy.ok("up", "stub", "--replace", "--json").data["instance"]
    assert stage.running() == [second] != [first]
    deploy.ok("rollback", "stub")
    assert stage.running() == [first]
    assert set(stage.instances()) == {first, second}


def test_a_candidate_that_dies_goes_back_by_itself(stage: Stage, deploy: Killable) -> None:
    first = deploy.ok("up", "stub", "--json").data["instance"]
    stage.layout("dies")
    outcome = deploy("up", "stub", "--replace", "--auto-rollback")
    assert outcome.status == 1
    assert stage.running() == [first]
    assert f"started {first} again" in outcome.stderr


def test_there_is_nothing_to_go_back_to_after_a_first_start(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    before = stage.running()
    outcome = deploy("rollback", "stub")
    assert outcome.status == 1
    assert "no accepted deployment" in outcome.stderr
    assert stage.running() == before
