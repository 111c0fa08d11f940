"""The way back, once the engine that ran has been stopped: whatever then keeps the new one from running or passing."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
from campaign_stage import UNASKED, Stage, hook
from deploy_cli_process import Killable

OTHER = {"served_model_name": "faulty-model", "max_model_len": 4096}
REPLACE = ("up", "stub", "--replace", "--json")
SWITCH = (*REPLACE, "--auto-rollback")
BETWEEN_STOP_AND_START = "stop"
"""What the driver calls the boundary just after a stop is on record."""


def hook_says_no(stage: Stage, running: str) -> AbstractContextManager[None]:
    hook(stage, "pre-start", f'[ "$DEPLOY_INSTANCE" = "{running}" ]')
    stage.layout(serve=OTHER)
    return nullcontext()


@contextmanager
def taken_port(stage: Stage, running: str) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        stage.layout(serve=OTHER, container={"publish": f"127.0.0.1:{holder.getsockname()[1]}:8000"})
        yield


def bad_engine(stage: Stage, running: str) -> AbstractContextManager[None]:
    """An interpreter that goes between the checks and the start, as an image does that is just cleaned away."""
    there, gone = stage.python, stage.python.with_name("gone")
    hook(
        stage,
        "pre-start",
        f'if [ "$DEPLOY_INSTANCE" = "{running}" ]; then mv {gone} {there}; else mv {there} {gone}; fi',
    )
    stage.layout(serve=OTHER)
    return nullcontext()


def hook_after_it_is_ready_says_no(stage: Stage, running: str) -> AbstractContextManager[None]:
    hook(stage, "post-ready", f'[ "$DEPLOY_INSTANCE" = "{running}" ]')
    stage.layout(serve=OTHER)
    return nullcontext()


FAULTS: dict[str, Callable[[Stage, str], AbstractContextManager[None]]] = {
    "hooks/pre-start says no": hook_says_no,
    "is in use": taken_port,
    "is not an executable": bad_engine,
    "hooks/post-ready says no": hook_after_it_is_ready_says_no,
}


@pytest.mark.parametrize("said", FAULTS)
def test_up_goes_back_whatever_keeps_the_new_one_from_starting(stage: Stage, deploy: Killable, said: str) -> None:
    first = deploy.ok("up", "stub", "--json").data["instance"]
    with FAULTS[said](stage, first):
        outcome = deploy(*SWITCH)
    assert outcome.status == 1
    assert said in outcome.stderr
    assert stage.running() == [first], outcome.stderr


@pytest.mark.parametrize("said", ["hooks/pre-start says no", "is not an executable"])
def test_boot_brings_the_control_back_whatever_keeps_the_candidate_from_starting(
    stage: Stage, deploy: Killable, said: str
) -> None:
    control = deploy.ok("up", "stub", "--json").data["instance"]
    deploy.ok("rebalance", "control", "--layout", "stub", "--mode", "quick")
    with FAULTS[said](stage, control):
        outcome = deploy("rebalance", "boot", "--layout", "stub", "--yes")
    assert outcome.status == 1
    assert said in outcome.stderr
    assert stage.running() == [control], outcome.stderr


def test_nothing_goes_back_when_nothing_was_stopped(stage: Stage, deploy: Killable) -> None:
    """The engine that runs stays as it is, also where it is not the one to go back to."""
    deploy.ok("up", "stub")
    stage.layout(serve=OTHER)
    deploy.ok("up", "stub", "--replace")
    (running,) = stage.running()
    hook(stage, "pre-stop", "exit 1")
    stage.layout("garbled")
    outcome = deploy(*SWITCH)
    assert outcome.status == 1
    assert "going back" not in outcome.stderr
    assert stage.running() == [running]


def test_without_auto_rollback_the_next_rollback_starts_what_was_stopped(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    stage.layout(serve=OTHER)
    second = deploy.ok(*REPLACE).data["instance"]
    hook(stage, "pre-start", f'[ "$DEPLOY_INSTANCE" = "{second}" ]')
    stage.layout("garbled")
    assert deploy(*REPLACE).status == 1
    assert stage.running() == []
    deploy.ok("rollback", "stub")
    assert stage.running() == [second]


def test_an_old_acquaintance_that_fails_goes_back_to_what_ran_before_it(stage: Stage, deploy: Killable) -> None:
    """It was accepted once, so nothing accepted before it is what ran just now."""
    deploy.ok("up", "stub")
    stage.layout(serve=OTHER)
    second = deploy.ok(*REPLACE).data["instance"]
    stage.layout()
    hook(stage, "post-ready", f'[ "$DEPLOY_INSTANCE" = "{second}" ]')
    assert deploy(*SWITCH).status == 1
    assert stage.running() == [second]


def test_a_candidate_that_dies_while_it_is_asked_goes_back(stage: Stage, deploy: Killable) -> None:
    """Nothing can be said then, and yet it is not what anybody wants to keep."""
    first = deploy.ok("up", "stub", "--json").data["instance"]
    asked = {"not_applicable": dict.fromkeys(set(UNASKED) - {"repeat"}, "not what this test is about")}
    stage.layout("dies-at-long-prompts", probes=asked)
    outcome = deploy(*SWITCH)
    assert outcome.status == 4
    assert outcome.data["verdict"] == "FAULT"
    assert outcome.data["rolled_back_to"] == first
    assert stage.running() == [first]


def test_killed_between_stop_and_start_the_next_up_still_knows_the_way_back(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    stage.layout(serve=OTHER)
    second = deploy.ok(*REPLACE).data["instance"]
    stage.layout("dies")
    assert deploy.killed_after(BETWEEN_STOP_AND_START, *SWITCH).status < 0
    assert stage.running() == []
    outcome = deploy(*SWITCH)
    assert outcome.status == 1
    assert stage.running() == [second], outcome.stderr


def test_killed_between_stop_and_start_rollback_undoes_it(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    stage.layout(serve=OTHER)
    second = deploy.ok(*REPLACE).data["instance"]
    stage.layout("dies")
    assert deploy.killed_after(BETWEEN_STOP_AND_START, *REPLACE).status < 0
    deploy.ok("rollback", "stub")
    assert stage.running() == [second]
    assert json.loads((stage.state / "started" / "stub.json").read_text())["instance"] == second


@pytest.mark.parametrize("moment", ["pre-start", "post-ready"])
def test_interrupted_after_the_stop_the_same_command_goes_on(stage: Stage, deploy: Killable, moment: str) -> None:
    """Ctrl-C is no failure of the candidate: nothing goes back by itself, and nothing is lost."""
    first = deploy.ok("up", "stub", "--json").data["instance"]
    stage.layout(serve=OTHER)
    hook(stage, moment, "kill -INT $PPID; sleep 5")
    assert deploy(*SWITCH).status == 130
    assert first not in stage.running()
    (stage.folder / "hooks" / moment).unlink()
    left = max(run.name for run in stage.runs())
    outcome = deploy.ok(*SWITCH)
    assert stage.running() == [outcome.data["instance"]]
    assert outcome.data["run"].endswith(left)
    deploy.ok("rollback", "stub")
    assert stage.running() == [first]


def test_an_engine_whose_start_was_never_noted_can_be_stopped(stage: Stage, deploy: Killable) -> None:
    first = deploy.ok("up", "stub", "--json").data["instance"]
    (stage.folder / ".deploy" / "started" / "stub.json").unlink()
    assert f"stopped {first}" in deploy.ok("stop", "stub").stdout
    assert stage.running() == []


def test_a_record_that_does_not_read_says_what_to_do_and_that_works(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub", "--json")
    record = stage.folder / ".deploy" / "started" / "stub.json"
    record.write_text("{")
    refused = deploy("stop", "stub")
    assert refused.status == 1 and f"rm {record}" in refused.stderr
    record.unlink()
    deploy.ok("stop", "stub")
    assert stage.running() == []
