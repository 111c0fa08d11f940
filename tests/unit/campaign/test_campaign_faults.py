"""What goes wrong around a campaign: failing candidates, hooks, secrets, a full disk, dead engines, forged evidence."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from campaign_stage import UNASKED, Stage, hook
from deploy_cli_process import Killable

from shardwright.campaign.evidence import SEAL, digest_of, file_hashes
from shardwright.runtime.local import LocalRuntime
from tests.deploy_cli import ROOT

SECRET = "s3cret-value-of-the-key"


def test_a_candidate_that_answers_garbage_fails_and_goes_back_by_itself(stage: Stage, deploy: Killable) -> None:
    first = deploy.ok("up", "stub", "--json").data["instance"]
    stage.layout("garbled")
    outcome = deploy("up", "stub", "--replace", "--auto-rollback", "--json")
    assert outcome.status == 2, outcome.stderr
    assert outcome.data["verdict"] == "FAIL"
    assert outcome.data["reasons"][0].startswith("smoke: ")
    assert outcome.data["rolled_back_to"] == first
    assert stage.running() == [first]


def test_a_probe_that_is_declared_not_applicable_is_never_a_pass(stage: Stage, deploy: Killable) -> None:
    run = Path(deploy.ok("up", "stub", "--json").data["run"])
    probes = json.loads((run / "verdict.json").read_text())["probes"]
    assert probes["smoke"] == "PASS"
    assert probes["degen"] == probes["needle"] == "SKIP"
    stage.layout(probes={"not_applicable": dict.fromkeys(("smoke", *UNASKED), "untrained")})
    outcome = deploy("up", "stub", "--json")
    assert outcome.status == 3
    assert outcome.data["reasons"][-1] == "no probe passed"


def documented() -> set[str]:
    """The variables that docs/campaigns.md promises to a hook."""
    text = (ROOT / "docs" / "campaigns.md").read_text()
    return set(re.findall(r"`(DEPLOY_\w+)`", text[text.index("## Lock and hooks") :]))


def test_hooks_run_in_their_order_with_the_documented_facts_and_without_secrets(stage: Stage) -> None:
    stage.layout(secrets=["VLLM_API_KEY"])
    deploy = Killable(stage.folder, DEPLOY_PYTHON=str(stage.python), VLLM_API_KEY=SECRET)
    evidence, verdict = {"DEPLOY_RUN_DIR"}, {"DEPLOY_VERDICT"}
    always = documented() - evidence - verdict
    assert len(always) == 7
    told = {"pre-start": always, "post-ready": always | evidence, "verdict": documented(), "pre-stop": always}
    for moment in told:
        hook(stage, moment, "env > told-$DEPLOY_HOOK && echo $DEPLOY_HOOK >> order")
    up = deploy.ok("up", "stub", "--json").data
    deploy.ok("stop", "stub")
    assert (stage.folder / "order").read_text().split() == ["pre-start", "post-ready", "verdict", "pre-stop"]
    record = json.loads((stage.state / "started" / "stub.json").read_text())
    for moment, names in told.items():
        lines = (stage.folder / f"told-{moment}").read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        assert found.keys() & documented() == names
        assert (found["DEPLOY_INSTANCE"], found["DEPLOY_DIGEST"]) == (up["instance"], record["digest"])
        assert found.get("DEPLOY_RUN_DIR") in (None, up["run"])
        assert found.get("DEPLOY_VERDICT") in (None, "PASS")
        assert SECRET not in found.values()


@pytest.mark.parametrize("moment", ["pre-start", "post-ready", "verdict"])
def test_a_hook_that_says_no_ends_the_start(stage: Stage, deploy: Killable, moment: str) -> None:
    hook(stage, moment, "exit 3")
    outcome = deploy("up", "stub")
    assert outcome.status == 1
    assert f"hooks/{moment} says no (exit code 3)" in outcome.stderr
    assert bool(stage.running()) == (moment != "pre-start")
    assert not (stage.state / "proven").exists()


def test_a_hook_that_says_no_keeps_the_engine_running(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    hook(stage, "pre-stop", "exit 1")
    assert deploy("stop", "stub").status == 1
    assert len(stage.running()) == 1
    (stage.folder / "hooks" / "pre-stop").chmod(0o644)
    assert "is not executable" in deploy("stop", "stub").stderr
    assert len(stage.running()) == 1


def test_no_secret_is_in_the_evidence(stage: Stage) -> None:
    stage.layout(secrets=["VLLM_API_KEY", "HF_TOKEN"])
    keys = {"VLLM_API_KEY": SECRET, "HF_TOKEN": "hf_planted"}
    deploy = Killable(stage.folder, DEPLOY_PYTHON=str(stage.python), STUB_SAYS="1", **keys)
    run = Path(deploy.ok("up", "stub", "--json", "-m", f"with {SECRET}").data["run"])
    for file in (file for file in run.rglob("*") if file.is_file()):
        content = file.read_bytes()
        assert not any(value.encode() in content for value in keys.values()), file
    names = json.loads((run / "command.json").read_text())["secrets"]
    assert names == ["VLLM_API_KEY", "HF_TOKEN"]


def test_a_full_disk_is_one_clear_line_and_the_next_call_goes_on(stage: Stage, deploy: Killable) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy.py"), "up", "stub"],
        env=deploy.environment,
        cwd=stage.folder,
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=60,
    )
    assert done.returncode == 1
    assert "cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(stage.folder.rglob(".*.tmp"))
    assert deploy.ok("up", "stub", "--json").data["verdict"] == "PASS"


def test_an_engine_that_was_killed_is_brought_up_again(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    (state,) = LocalRuntime(stage.folder).instances("stub")
    os.killpg(int(state.identifier), signal.SIGKILL)
    again = deploy.ok("up", "stub", "--json").data
    assert stage.running() == [again["instance"]]


def test_two_at_once_the_second_is_told_who_is_at_work(stage: Stage, deploy: Killable) -> None:
    hook(stage, "post-ready", "sleep 5")
    first = subprocess.Popen(
        [sys.executable, str(ROOT / "deploy.py"), "up", "stub", "-m", "the evening run"],
        env=deploy.environment,
        cwd=stage.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stderr is not None
    while "start: stub" not in first.stderr.readline():
        pass
    second = deploy("up", "stub")
    first.communicate()
    assert second.status == 1
    assert f"pid {first.pid}" in second.stderr
    assert "the evening run" in second.stderr
    assert first.returncode == 0


def flip(run: Path) -> None:
    """Turn the last judged check of smoke into a failure."""
    file = run / "trials" / "smoke.jsonl"
    lines = file.read_text().splitlines()
    place = max(number for number, line in enumerate(lines) if '"class": "PASS"' in line)
    lines[place] = lines[place].replace('"class": "PASS"', '"class": "FAIL"')
    file.write_text("\n".join(lines) + "\n")


def test_a_changed_trial_is_found_even_under_a_new_seal(stage: Stage, deploy: Killable) -> None:
    run = Path(deploy.ok("up", "stub", "--json").data["run"])
    copy = stage.folder / "copy"
    shutil.copytree(run, copy)
    flip(copy)
    assert deploy("evidence", "verify", str(copy)).status == 2
    files = file_hashes(copy)
    (copy / SEAL).write_text(json.dumps({"files": files, "digest": digest_of(files)}))
    outcome = deploy("evidence", "verify", str(copy), "--json")
    assert outcome.status == 2
    found = outcome.data["differences"]
    assert any(line.startswith("smoke.verdict: the report says") for line in found), found
    (copy / "verdict.json").unlink()
    assert "verdict.json: missing" in deploy("evidence", "verify", str(copy), "--json").data["differences"]


def test_a_run_that_did_not_end_proves_nothing(stage: Stage, deploy: Killable) -> None:
    run = Path(deploy.ok("up", "stub", "--json").data["run"])
    (run / SEAL).unlink()
    assert deploy("evidence", "verify", str(run)).status == 3
    assert deploy("evidence", "verify", str(stage.folder)).status == 64
