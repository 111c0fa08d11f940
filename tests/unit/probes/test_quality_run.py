"""The quality probe as a whole: verdicts, what is not applicable, taking up, the report made again from its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import DeployError, ExitCode, UsageError
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.quality.plan import CHECKS, QualityPlan, full, quick
from shardwright.probes.quality.run import report_from, run_quality
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import Server, identify
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint
from tests.unit.helpers import torn_in_last_trial

PLAN = QualityPlan(echo_trials=4, tool_trials=1)


def ask(mode: str, file: Path, plan: QualityPlan = PLAN, **changes: Any) -> ProbeReport:
    with FaultyServer(mode) as faulty, Journal(file) as journal:
        server = identify(Endpoint(faulty.base_url, idle_timeout_s=5), None)
        for name, value in changes.items():
            object.__setattr__(server.capabilities, name, value)
        return run_quality(server, plan, journal)


def failed(report: ProbeReport) -> set[str]:
    return {row["trial"].partition("#")[0] for row in report.numbers["checks"] if row["class"] == "FAIL"}


def test_a_healthy_server_passes_every_check(tmp_path: Path) -> None:
    report = ask("healthy", tmp_path / "t.jsonl")
    assert (report.verdict, report.reasons, report.exit_code) == ("PASS", (), ExitCode.OK)
    assert report.classes == {"PASS": len(PLAN.trials())}
    assert report.numbers["tool_calls"] == {"trials": 1, "wrong": 0, "upper_bound": pytest.approx(0.95)}
    assert report.numbers["echo"]["echo-c8"] == {"ids": 32, "wrong": 0, "upper_bound": pytest.approx(0.0894, abs=1e-4)}


@pytest.mark.parametrize(
    ("mode", "check"),
    [
        ("topology-salad", "fact"),
        ("nan-logits", "no-markup"),
        ("padded-experts", "product"),
        ("multi-turn-garbage", "memory"),
        ("lost-characters", "echo-c8"),
        ("lost-brace", "tool-required-stream"),
        ("no-arguments", "tool-auto"),
        ("hidden-length", "tool-cut-off"),
        ("call-markup", "tool-auto"),
        ("think-in-text", "no-markup"),
        ("only-reasoning", "fact"),
        ("responses-turn-2", "responses-round-trip"),
        ("nan-logprobs", "logprobs"),
        ("split-characters", "stream-unicode"),
        ("no-done", "stream-form"),
        ("null-finish", "stream-form"),
        ("wrong-usage", "usage"),
    ],
)
def test_the_check_that_a_fault_is_for_says_no(mode: str, check: str, tmp_path: Path) -> None:
    report = ask(mode, tmp_path / "t.jsonl")
    assert (report.verdict, report.exit_code) == ("FAIL", ExitCode.DRIFT)
    assert check in failed(report), report.reasons


def test_a_fault_under_load_alone_is_not_seen_one_at_a_time(tmp_path: Path) -> None:
    seen = failed(ask("load-garbage", tmp_path / "t.jsonl"))
    assert "echo-c8" in seen
    assert "echo-c1" not in seen


def test_engine_only_blames_no_model(tmp_path: Path) -> None:
    report = ask("topology-salad", tmp_path / "t.jsonl", QualityPlan(4, 1, engine_only=True))
    assert {row["role"] for row in report.numbers["checks"]} == {"engine"}


def test_busy_answers_are_neither_passed_nor_failed(tmp_path: Path) -> None:
    report = ask("burst-429", tmp_path / "t.jsonl")
    assert (report.verdict, report.failures) == ("INCONCLUSIVE", 0)
    assert report.errors
    assert "429" in " ".join(report.reasons)


def test_what_the_server_lacks_is_never_passed_and_fails_where_it_is_required(tmp_path: Path) -> None:
    plan = QualityPlan(1, 1, skip=("copy", "knowledge"))
    report = ask("healthy", tmp_path / "a.jsonl", plan, responses=False)
    lacking = [row for row in report.numbers["checks"] if row["category"] == "responses"]
    assert {row["class"] for row in lacking} == {"NOT_APPLICABLE"}
    assert (report.verdict, len(report.reasons)) == ("PASS", len(lacking))
    needy = QualityPlan(1, 1, skip=("copy", "knowledge"), required=("responses",))
    report = ask("healthy", tmp_path / "b.jsonl", needy, responses=False)
    assert (report.verdict, report.failures) == ("FAIL", len(lacking))


def test_a_server_that_cannot_chat_is_no_failure_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(DeployError) as caught:
        ask("dead-engine", tmp_path / "t.jsonl")
    assert caught.value.code == ExitCode.HARNESS


def test_the_report_can_be_made_again_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    report = ask("hidden-length", file)
    assert report_from(read_records(file), report.plan, str(file)).to_json() == report.to_json()


def test_a_file_that_was_cut_off_in_its_last_trial_is_reported_without_it(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    report = ask("healthy", file)
    file.write_text(torn_in_last_trial(file.read_text()))
    again = report_from(read_records(file), report.plan)
    assert (again.trials, again.errors) == (report.trials - 1, 0)
    assert again.numbers["planned"] == report.trials


def test_a_fault_that_is_known_is_told_and_fails_nothing_else_does(tmp_path: Path) -> None:
    known = replace(PLAN, known=(("tool-cut-off", "seen before"),))
    report = ask("hidden-length", tmp_path / "known.jsonl", known)
    assert (report.verdict, report.failures, report.classes["FAIL"]) == ("PASS", 0, 1)
    assert report.reasons[-1].endswith("known, and not held against this deployment: seen before")
    other = ask("lost-brace", tmp_path / "other.jsonl", known)
    assert other.verdict == "FAIL"
    with pytest.raises(UsageError, match="no quality check 'tool-cut'"):
        QualityPlan(1, 1, known=(("tool-cut", "misspelt"),))


def test_a_class_that_was_changed_on_file_does_not_change_the_report(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    report = ask("topology-salad", file)
    records = [record | {"class": "PASS"} if record["kind"] == "trial" else record for record in read_records(file)]
    assert report_from(records, report.plan, str(file)).verdict == "FAIL"


def test_a_run_that_was_cut_off_is_taken_up(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    with FaultyServer() as faulty:
        server = identify(Endpoint(faulty.base_url), None)
        with Journal(file) as journal:
            run_quality(server, PLAN, journal)
        lines = file.read_text().splitlines()
        kept = [line for line in lines if json.loads(line)["kind"] != "result"][:20]
        file.write_text("\n".join(kept) + "\n")
        before = len(faulty.requests)
        with Journal(file) as journal:
            report = run_quality(server, PLAN, journal)
        again = len(faulty.requests) - before
    assert report.verdict == "PASS"
    assert 0 < again < before


def test_a_plan_names_itself_by_its_content() -> None:
    server = Server(Endpoint("http://127.0.0.1:1"), "m", None, None)
    ids: set[str] = {make(skip=skip).id(server) for make in (quick, full) for skip in ((), ("copy",))}
    assert len(ids) == 4
    assert quick().id(server) == quick().id(server)


def test_the_budget_counts_what_is_asked() -> None:
    assert f"{len(CHECKS)} checks in {len(quick().trials())} trials" in quick().budget()


def test_every_check_has_a_role_that_engine_only_respects() -> None:
    judges: list[Callable[..., Any]] = [check.judge for check in CHECKS.values()]
    assert len(judges) >= 40
    assert all(check.role == "engine" for check in QualityPlan(1, 1, engine_only=True).checks())
