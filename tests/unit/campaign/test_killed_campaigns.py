"""Kill a campaign at each boundary of its work: the next call finishes it, and nothing foreign is touched."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign_stage import Stage
from deploy_cli_process import Killable

OTHER = {"served_model_name": "faulty-model", "max_model_len": 4096}
FEW = (1, 6, 12)
"""Boundaries that the quick tests take; the slow tier takes all."""
OLD_TO_NEW = tuple(range(5, 12))
"""Boundaries of `up --replace` that `up` alone does not have."""


class Foreign:
    """Files in the project that are not ours to touch."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / "runs" / "notes.txt", folder / ".deploy" / "local" / "mine", folder / "model" / "w.bin"]
        for file in self._files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("not yours")

    def is_untouched(self) -> bool:
        return all(file.read_text() == "not yours" for file in self._files)


def bundles(stage: Stage) -> list[Path]:
    return [run for run in stage.runs() if run.is_dir()]


def killed_at_each(
    deploy: Killable, words: tuple[str, ...], boundaries: tuple[int, ...] | None, then: Callable[[int], None]
) -> int:
    """Kill `deploy WORDS` at each boundary in turn, calling `then` after each; how many there are."""
    number = 0
    while True:
        number += 1
        if boundaries is not None and number > max(boundaries):
            return number
        if boundaries is not None and number not in boundaries:
            continue
        outcome = deploy.killed_at(number, *words)
        if outcome.status != -signal.SIGKILL:
            assert boundaries is None, f"there is no boundary {number}: {outcome}"
            return number - 1
        then(number)


def assert_sealed(stage: Stage, number: int) -> None:
    unsealed = [run.name for run in bundles(stage) if not (run / "seal.json").exists()]
    assert not unsealed, f"after boundary {number}"


def no_leftovers(stage: Stage) -> None:
    left = [path.name for path in stage.folder.rglob(".*.tmp")]
    assert not left


def check_up(stage: Stage, deploy: Killable, boundaries: tuple[int, ...] | None) -> int:
    foreign = Foreign(stage.folder)

    def then(number: int) -> None:
        outcome = deploy("up", "stub", "--json")
        assert outcome.status == 0, f"after boundary {number}: {outcome.stderr}"
        assert outcome.data["verdict"] == "PASS"
        assert stage.running() == [outcome.data["instance"]]
        run = Path(outcome.data["run"])
        assert deploy("evidence", "verify", str(run)).status == 0
        assert_sealed(stage, number)
        assert foreign.is_untouched()
        no_leftovers(stage)
        deploy.ok("stop", "stub")

    return killed_at_each(deploy, ("up", "stub"), boundaries, then)


def check_replace(stage: Stage, deploy: Killable, boundaries: tuple[int, ...] | None) -> int:
    first = deploy.ok("up", "stub", "--json").data["instance"]
    stage.layout(serve=OTHER)
    foreign = Foreign(stage.folder)
    words = ("up", "stub", "--replace", "--json")

    def then(number: int) -> None:
        outcome = deploy(*words)
        assert outcome.status == 0, f"after boundary {number}: {outcome.stderr}"
        assert stage.running() == [outcome.data["instance"]] != [first]
        assert_sealed(stage, number)
        deploy.ok("rollback", "stub")
        assert stage.running() == [first], f"after boundary {number}"
        assert foreign.is_untouched()

    return killed_at_each(deploy, words, boundaries, then)


def check_rollback(stage: Stage, deploy: Killable, boundaries: tuple[int, ...] | None) -> int:
    first = deploy.ok("up", "stub", "--json").data["instance"]
    stage.layout(serve=OTHER)
    second = deploy.ok("up", "stub", "--replace", "--json").data["instance"]
    foreign = Foreign(stage.folder)

    def then(number: int) -> None:
        outcome = deploy("rollback", "stub")
        was_done = outcome.status == 1 and "no accepted deployment" in outcome.stderr
        assert outcome.status == 0 or was_done, f"after boundary {number}: {outcome.stderr}"
        assert stage.running() == [first], f"after boundary {number}"
        assert foreign.is_untouched()
        assert deploy.ok("up", "stub", "--replace", "--json").data["instance"] == second

    return killed_at_each(deploy, ("rollback", "stub"), boundaries, then)


def check_boot(stage: Stage, deploy: Killable, boundaries: tuple[int, ...] | None) -> int:
    control = deploy.ok("up", "stub", "--json").data["instance"]
    deploy.ok(*rebalance("control", "--mode", "quick"))
    foreign = Foreign(stage.folder)
    words = rebalance("boot", "--yes", "--set", "serve.max_model_len=4096", "--json")

    def then(number: int) -> None:
        outcome = deploy(*words)
        assert outcome.status == 0, f"after boundary {number}: {outcome.stderr}"
        assert stage.running() == [outcome.data["instance"]] != [control]
        assert foreign.is_untouched()
        deploy.ok("rollback", "stub")
        assert stage.running() == [control]

    return killed_at_each(deploy, words, boundaries, then)


def begin_rebalance(deploy: Killable) -> None:
    deploy.ok("up", "stub")
    deploy.ok(*rebalance("control", "--mode", "quick"))


def rebalance(step: str, *words: str) -> tuple[str, ...]:
    return "rebalance", step, "--layout", "stub", *words


def check_control(stage: Stage, deploy: Killable, boundaries: tuple[int, ...] | None) -> int:
    deploy.ok("up", "stub")
    words = rebalance("control", "--mode", "quick", "--json")

    def then(number: int) -> None:
        outcome = deploy(*words)
        assert outcome.status == 0, f"after boundary {number}: {outcome.stderr}"
        assert outcome.data["probes"]["smoke"] == "PASS"
        assert deploy("evidence", "verify", outcome.data["run"]).status == 0
        assert_sealed(stage, number)

    return killed_at_each(deploy, words, boundaries, then)


def check_verify(stage: Stage, deploy: Killable, boundaries: tuple[int, ...] | None) -> int:
    begin_rebalance(deploy)
    boot = rebalance("boot", "--yes", "--set", "serve.max_model_len=4096")
    deploy.ok(*boot)

    def then(number: int) -> None:
        outcome = deploy(*rebalance("verify"))
        was_done = outcome.status == 64 and "was asked already" in outcome.stderr
        assert outcome.status == 0 or was_done, f"after boundary {number}: {outcome.stderr}"
        assert_sealed(stage, number)
        assert deploy.ok(*rebalance("verdict", "--json")).data["verdict"] == "PASS"
        deploy.ok(*boot)

    return killed_at_each(deploy, rebalance("verify"), boundaries, then)


def check_verdict(stage: Stage, deploy: Killable, boundaries: tuple[int, ...] | None) -> int:
    begin_rebalance(deploy)
    deploy.ok(*rebalance("boot", "--yes", "--set", "serve.max_model_len=4096"))
    deploy.ok(*rebalance("verify"))

    def then(number: int) -> None:
        outcome = deploy(*rebalance("verdict", "--json"))
        assert outcome.status == 0, f"after boundary {number}: {outcome.stderr}"
        assert deploy("evidence", "verify", outcome.data["run"]).status == 0
        assert_sealed(stage, number)

    return killed_at_each(deploy, rebalance("verdict"), boundaries, then)


CHECKS = {
    "up": check_up,
    "replace": check_replace,
    "rollback": check_rollback,
    "control": check_control,
    "boot": check_boot,
    "verify": check_verify,
    "verdict": check_verdict,
}


def test_up_goes_on_after_a_kill(stage: Stage, deploy: Killable) -> None:
    check_up(stage, deploy, FEW)


def test_rollback_goes_on_after_a_kill(stage: Stage, deploy: Killable) -> None:
    check_rollback(stage, deploy, (1, 2))


def test_an_arm_that_was_sealed_and_not_noted_is_not_asked_again(stage: Stage, deploy: Killable) -> None:
    check_control(stage, deploy, (3,))


def test_a_verdict_that_was_cut_off_is_taken_up(stage: Stage, deploy: Killable) -> None:
    check_verdict(stage, deploy, (2,))


@pytest.mark.slow
@pytest.mark.parametrize("verb", CHECKS)
def test_every_boundary(stage: Stage, deploy: Killable, verb: str) -> None:
    assert CHECKS[verb](stage, deploy, OLD_TO_NEW if verb == "replace" else None) >= 2


def test_a_killed_holder_of_the_lock_is_named(stage: Stage, deploy: Killable) -> None:
    deploy.killed_at(5, "up", "stub", "-m", "new cards")
    note = json.loads((stage.state / "locks" / "stub.lock").read_text())
    again = deploy.ok("up", "stub")
    assert f"taking up what was left by {note['user']} on {note['host']}, pid {note['pid']}" in again.stderr
    assert "new cards" in again.stderr
