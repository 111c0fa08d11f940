"""Rebalance on a stand-in engine: every verdict, and what happens to the control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from campaign_stage import UNASKED, Stage
from deploy_cli_process import Killable

ASKED = {"not_applicable": {name: "not what this test is about" for name in UNASKED if name != "repeat"}}
BIGGER = ("--set", "serve.max_model_len=16384")


def begin(stage: Stage, deploy: Killable, mode: str = "healthy", **keys: Any) -> str:
    """Bring the control up and ask it; its instance."""
    stage.layout(mode, **keys)
    deploy.ok("start", "stub")
    deploy.ok("wait", "stub")
    deploy("rebalance", "control", "--layout", "stub", "--mode", "quick")
    (instance,) = stage.running()
    return instance


def boot(deploy: Killable, *sets: str, flags: tuple[str, ...] = ("--yes",)) -> Any:
    return deploy("rebalance", "boot", "--layout", "stub", *flags, *sets, "--json")


def judged(deploy: Killable) -> Any:
    deploy("rebalance", "verify", "--layout", "stub")
    return deploy("rebalance", "verdict", "--layout", "stub", "--json")


def test_a_sound_candidate_passes_with_every_number_in_evidence(stage: Stage, deploy: Killable) -> None:
    control = begin(stage, deploy, probes=ASKED)
    outcome = boot(deploy, *BIGGER)
    assert outcome.status == 0, outcome.stderr
    verdict = judged(deploy)
    assert verdict.status == 0, verdict.stdout
    assert verdict.data["verdict"] == "PASS"
    rows = {row["metric"]: row for row in verdict.data["rows"]}
    assert rows["smoke"]["cells"] == ["PASS", "PASS"]
    assert rows["repeat"]["verdict"] == "PASS"
    assert rows["needle"]["verdict"] is None
    run = Path(verdict.data["run"])
    assert {path.name for path in run.iterdir()} == {"manifest.json", "ab.json", "seal.json", "control", "candidate"}
    assert deploy("evidence", "verify", str(run)).status == 0
    deploy.ok("rollback", "stub")
    assert stage.running() == [control]


def test_a_candidate_with_a_stale_buffer_fails_and_the_reason_is_named(stage: Stage, deploy: Killable) -> None:
    begin(stage, deploy, probes=ASKED)
    assert boot(deploy, "--set", "env.STUB_MODE=stale-index").status == 0
    verdict = judged(deploy)
    assert verdict.status == 2
    assert verdict.data["verdict"] == "FAIL"
    assert verdict.data["reasons"][0].startswith("smoke: completion: the same greedy request twice")


def test_an_unhealthy_control_is_its_own_verdict(stage: Stage, deploy: Killable) -> None:
    begin(stage, deploy, "garbled", probes=ASKED)
    assert boot(deploy, "--set", "env.STUB_MODE=healthy").status == 0
    verdict = judged(deploy)
    assert verdict.status == 3
    assert verdict.data["verdict"] == "CONTROL_UNHEALTHY"
    assert verdict.data["reasons"][0].startswith("control: smoke: ")


@pytest.mark.parametrize("restore", [True, False])
def test_a_candidate_that_dies_brings_the_control_back_unless_told_otherwise(
    stage: Stage, deploy: Killable, restore: bool
) -> None:
    control = begin(stage, deploy)
    flags = ("--yes",) if restore else ("--yes", "--no-restore")
    outcome = boot(deploy, "--set", "env.STUB_MODE=dies", flags=flags)
    assert outcome.status == 1
    assert "died" in outcome.stderr
    assert stage.running() == ([control] if restore else [])
    refused = [run for run in stage.runs() if (run / "refused.json").exists()]
    assert len(refused) == 1
    assert "Engine core initialization failed" in (refused[0] / "engine.log").read_text()


def test_nothing_is_stopped_unasked_or_when_a_gate_refuses(stage: Stage, deploy: Killable) -> None:
    control = begin(stage, deploy)
    asked = boot(deploy, *BIGGER, flags=())
    assert asked.status == 64
    assert "--yes" in asked.stderr
    refused = boot(deploy, "--set", "serve.no_such_flag=1")
    assert refused.status == 1
    assert "no_such_flag" in refused.stderr or "no-such-flag" in refused.stderr
    same = boot(deploy)
    assert same.status == 64
    assert "nothing differs" in same.stderr
    assert stage.running() == [control]


def test_arms_with_another_model_name_or_sampler_are_not_comparable(stage: Stage, deploy: Killable) -> None:
    from shardwright.campaign.rebalance.ab import load_arm
    from shardwright.campaign.rebalance.comparison import compare_arms
    from shardwright.errors import UsageError

    begin(stage, deploy, probes=ASKED)
    (run,) = stage.runs()
    arm = load_arm(run)
    other = load_arm(run)
    other.manifest["model"]["revision"] = "abc"  # type: ignore[index]
    with pytest.raises(UsageError, match="the model's revision differs"):
        compare_arms(arm, other)
    other = load_arm(run)
    header = next(record for record in other.trials["repeat"] if record["kind"] == "plan")
    header["request"]["answer_tokens"] += 1
    with pytest.raises(UsageError, match="repeat was asked differently \\(answer_tokens\\)"):
        compare_arms(arm, other)


def test_each_step_says_which_comes_first(stage: Stage, deploy: Killable) -> None:
    stage.layout()
    for step in (("boot", "--yes"), ("verify",), ("verdict",)):
        outcome = deploy("rebalance", step[0], "--layout", "stub", *step[1:])
        assert outcome.status == 64
        assert "deploy rebalance" in outcome.stderr
    assert deploy("rebalance", "control", "--layout", "stub").status == 1


def test_boots_of_a_sound_engine_agree_and_the_engine_runs_again(stage: Stage, deploy: Killable) -> None:
    stage.layout()
    instance = deploy.ok("up", "stub", "--json").data["instance"]
    outcome = deploy("boots", "stub", "--yes", "--json")
    assert outcome.status == 0, outcome.stderr
    assert stage.running() == [instance]
    run = Path(outcome.data["run"])
    assert deploy("evidence", "verify", str(run)).status == 0
    trials = run / "trials" / "boots-2.jsonl"
    text = trials.read_text()
    trials.write_text(text.replace('"class": "SAME"', '"class": "CHANGED"'))
    assert deploy("evidence", "verify", str(run)).status == 2
    assert json.loads((run / "verdict.json").read_text())["verdict"] == "PASS"


def test_boots_of_an_engine_with_unwritten_weights_differ(stage: Stage, deploy: Killable) -> None:
    stage.layout("boot-weights")
    deploy.ok("start", "stub")
    deploy.ok("wait", "stub")
    outcome = deploy("boots", "stub", "--yes", "--json")
    assert outcome.status == 2, outcome.stdout + outcome.stderr
    assert "each boot agrees with itself" in outcome.data["reasons"][-1]


def test_a_second_candidate_takes_the_place_of_one_that_failed(stage: Stage, deploy: Killable) -> None:
    control = begin(stage, deploy, probes=ASKED)
    boot(deploy, "--set", "env.STUB_MODE=stale-index")
    assert judged(deploy).data["verdict"] == "FAIL"
    boot(deploy, *BIGGER)
    assert judged(deploy).data["verdict"] == "PASS"
    deploy.ok("rollback", "stub")
    assert stage.running() == [control]
