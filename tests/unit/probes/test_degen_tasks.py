"""The degeneration probe beyond its short questions: transcripts, long texts, early decisions, control, abort."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import UsageError
from shardwright.probes import classify
from shardwright.probes.degen import abort_check
from shardwright.probes.degen.control import control_file, control_trials
from shardwright.probes.degen.plan import DegenPlan, full_plan, long_plan, short_plan
from shardwright.probes.degen.prompts import AGENT, LONG, ROTATION, as_plain_text
from shardwright.probes.degen.report import failing_trials, judge_trial, report_from
from shardwright.probes.degen.run import run_degen
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal, Record
from shardwright.probes.report import ProbeReport
from shardwright.probes.runs import open_run
from shardwright.probes.server import identify
from shardwright.probes.stats import fisher_one_sided
from shardwright.probes.wire import Endpoint

SHORT = DegenPlan(ROTATION, 25, "chat", 300)
AGENTS = DegenPlan((), 0, "chat", 300, agent_trials=8)
LONGS = DegenPlan((), 0, "chat", 300, long_trials=4, long_max_tokens=1200)


def run(mode: str, file: Path, plan: DegenPlan, seed: int = 1, step_s: float = 0.0, **options: Any) -> ProbeReport:
    with FaultyServer(mode, seed, step_s=step_s) as server, Journal(file) as journal:
        return run_degen(identify(Endpoint(server.base_url, idle_timeout_s=5), None), plan, journal, **options)


def on_file(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    file = tmp_path_factory.mktemp("healthy") / "t.jsonl"
    both = replace(SHORT, agent_trials=8, long_trials=4, long_max_tokens=1200, spread=8)
    assert run("healthy", file, both).verdict == "PASS"
    yield file


def test_a_healthy_server_passes_every_task(healthy: Path) -> None:
    records = on_file(healthy)
    report = report_from(records, records[-1]["plan"])
    assert report.classes == {"OK": 37}
    tasks = report.numbers["per_task"]
    assert {task: row["trials"] for task, row in tasks.items()} == {"short": 25, "agent": 8, "long": 4}
    # A fifth of each task goes alone, since some faults show only side by side.
    assert {name: row["trials"] for name, row in report.numbers["per_concurrency"].items()} == {"1": 8, "8": 29}


def test_long_texts_are_long_and_may_end_at_their_limit(healthy: Path) -> None:
    longs = [one for one in on_file(healthy) if one.get("task") == "long"]
    cut = [one for one in longs if one["finish_reason"] == "length"]
    assert cut
    assert {one["usage"]["completion_tokens"] for one in cut} == {1200}
    assert {one["class"] for one in longs} == {"OK"}
    assert len(LONG) == len({prompt.id for prompt in LONG})
    assert long_plan().long_max_tokens >= 4096
    # A short context leaves less; asking for more would be refused.
    assert long_plan(max_model_len=2048).long_max_tokens == 2048 - 512
    assert full_plan(SHORT, 1_000_000).long_max_tokens == 8192


def test_a_fault_that_only_long_texts_show(tmp_path: Path) -> None:
    assert run("long-loops", tmp_path / "short.jsonl", SHORT).verdict == "PASS"
    report = run("long-loops", tmp_path / "long.jsonl", replace(LONGS, long_trials=6))
    assert report.verdict == "FAIL"
    assert set(report.classes) == {"LOOP_EXACT", "OK"}


def test_a_fault_that_only_several_turns_show(tmp_path: Path) -> None:
    assert run("multi-turn-garbage", tmp_path / "short.jsonl", SHORT).verdict == "PASS"
    assert run("multi-turn-garbage", tmp_path / "agent.jsonl", AGENTS).classes == {"GARBAGE": 8}


def test_a_fault_that_only_concurrency_shows(tmp_path: Path) -> None:
    assert run("load-garbage", tmp_path / "alone.jsonl", SHORT).verdict == "PASS"
    report = run("load-garbage", tmp_path / "beside.jsonl", replace(SHORT, spread=8))
    assert report.verdict == "FAIL"
    assert report.numbers["per_concurrency"]["1"]["failures"] == 0


@pytest.mark.parametrize(
    "mode, classes",
    [
        ("doubled-words", {"GARBAGE"}),
        ("topology-salad", {"WRONG", "GARBAGE"}),
        ("near-loops", {"RUNAWAY", "LOOP_NEAR"}),
        ("only-reasoning", {"EMPTY"}),
        ("nan-logits", {"GARBAGE"}),
    ],
)
def test_each_fault_gets_its_class(tmp_path: Path, mode: str, classes: set[str]) -> None:
    report = run(mode, tmp_path / "t.jsonl", SHORT)
    assert report.verdict == "FAIL"
    assert set(report.classes) - {"OK"} <= classes
    assert report.failures


def test_transcripts_end_with_what_a_tool_said_and_the_answer_must_say_it() -> None:
    for prompt in AGENT:
        messages = prompt.messages
        assert messages[-1]["role"] == "tool"
        assert prompt.expect[0] in messages[-1]["content"]
        assert prompt.expect[0] not in "".join(str(one["content"]) for one in messages[:-1])
        called = [call["id"] for one in messages for call in one.get("tool_calls", ())]
        assert called == [one["tool_call_id"] for one in messages if one["role"] == "tool"]
        assert prompt.expect[0] in as_plain_text(messages)


def test_a_template_without_tools_gets_transcripts_as_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardwright.probes.degen import run as degen
    from shardwright.probes.wire import TransportError

    real = degen.fit_request

    def refuse_tools(endpoint: Endpoint, request: Any) -> Any:
        if any(message["role"] == "tool" for message in request.messages):
            raise TransportError("http", "HTTP 400: unexpected role tool", status=400)
        return real(endpoint, request)

    monkeypatch.setattr(degen, "fit_request", refuse_tools)
    report = run("healthy", tmp_path / "t.jsonl", AGENTS)
    assert report.trials == 8
    assert any("plain text" in reason for reason in report.reasons)


def test_four_failures_end_a_curtailed_run_and_decide_it(tmp_path: Path) -> None:
    plan = replace(short_plan(), spread=0, max_tokens=300)
    with FaultyServer("checkpoint-loops", seed=1) as server:
        known = identify(Endpoint(server.base_url), None)
        with open_run(tmp_path, "degen-x", plan.id(known)) as journal:
            report = run_degen(known, plan, journal)
    assert (report.verdict, report.failures) == ("FAIL", 4)
    assert report.trials < 60
    # It is finished: asking again measures again.
    journal.path.rename(journal.path.with_name(f"degen-x-{report.plan[:8]}-20200101T000000Z-1.jsonl"))
    with open_run(tmp_path, "degen-x", report.plan) as fresh:
        assert fresh.records == []


def curtailed(failures: int, trials: int = 200, lost: int = 0) -> ProbeReport:
    header = {"kind": "plan", "plan": "p", "planned": [f"short-{i:04d}" for i in range(trials)], "rule": "curtailed"}
    records: list[Record] = [header]
    for index in range(trials):
        reply = {"text": "Paris.", "reasoning": "", "finish_reason": "length" if index < failures else "stop"}
        if index >= trials - lost:
            reply = {"class": "ERROR", "detail": "gone", "error": {"detail": "gone"}}
        trial = {"kind": "trial", "plan": "p", "trial": f"short-{index:04d}", "task": "short", "class": "OK"}
        records.append(trial | reply)
    return report_from(records, "p")


@pytest.mark.parametrize(
    "failures, verdict, more", [(0, "PASS", None), (1, "INCONCLUSIVE", 36), (3, "INCONCLUSIVE", 186), (4, "FAIL", None)]
)
def test_a_few_failures_of_200_are_neither_pass_nor_fail(failures: int, verdict: str, more: int | None) -> None:
    report = curtailed(failures)
    assert (report.verdict, report.more_trials) == (verdict, more)


def test_up_to_2_percent_without_an_answer_still_decide() -> None:
    assert (curtailed(0, lost=4).verdict, curtailed(0, lost=4).trials) == ("PASS", 196)
    assert (curtailed(0, lost=5).verdict, curtailed(0, lost=5).more_trials) == ("INCONCLUSIVE", 5)
    assert curtailed(0, lost=200).verdict == "FAULT"


def test_the_published_difference_comes_out_of_stored_trials(tmp_path: Path) -> None:
    def arm(failures: int, trials: int) -> list[Record]:
        rows = []
        for index in range(trials):
            finish = "length" if index < failures else "stop"
            row = {"trial": f"short-{index:04d}", "task": "short", "class": "x", "prompt_id": "p1", "text": "Paris."}
            rows.append(row | {"reasoning": "", "finish_reason": finish, "tokens": 37 + index % 9})
        return rows

    header = {"kind": "plan", "plan": "p", "planned": [f"short-{i:04d}" for i in range(100)], "rule": "any"}
    records = [header, *({"kind": "trial", "plan": "p"} | one for one in arm(21, 100))]
    records += [{"kind": "control-trial", "plan": "p"} | one for one in arm(0, 120)]
    report = report_from(records, "p").to_json()
    assert report["p_value_vs_control"] == pytest.approx(1.80e-08, rel=0.003)
    assert (report["control"]["trials"], report["control"]["failures"]) == (120, 0)
    low, high = report["control"]["rate_difference"]
    assert 0.1 < low < 0.21 < high < 0.4


def test_a_control_arm_is_asked_once_and_compared(tmp_path: Path, healthy: Path) -> None:
    control = on_file(healthy)
    plan = replace(SHORT, long_max_tokens=1200)
    report = run("checkpoint-loops", tmp_path / "t.jsonl", plan, control=control)
    compared = report.numbers["control"]
    # Only the task that both arms were asked is compared.
    assert (compared["trials"], compared["failures"]) == (25, 0)
    assert report.numbers["p_value_vs_control"] == fisher_one_sided(report.failures, 25, 0, 25) < 0.05
    again = report_from(on_file(tmp_path / "t.jsonl"), report.plan, report.file)
    assert again == report


def test_a_loop_that_the_control_shows_too_is_not_blamed_on_the_deployment(tmp_path: Path) -> None:
    run("checkpoint-loops", tmp_path / "control.jsonl", replace(SHORT, trials=40))
    control = on_file(tmp_path / "control.jsonl")
    plan = replace(SHORT, trials=40, rule="curtailed")
    report = run("checkpoint-loops", tmp_path / "t.jsonl", plan, seed=2, control=control)
    assert report.verdict == "INCONCLUSIVE"
    assert any("the control fails too" in reason for reason in report.reasons)
    # The rule of `deploy degen` stays: any degenerate trial fails.
    assert run("checkpoint-loops", tmp_path / "any.jsonl", SHORT, control=control).verdict == "FAIL"


@pytest.mark.parametrize("other", [replace(SHORT, max_tokens=301), replace(SHORT, temperature=0.7), AGENTS])
def test_a_control_of_other_questions_is_refused(healthy: Path, other: DegenPlan) -> None:
    with pytest.raises(UsageError, match="not comparable"):
        control_trials(on_file(healthy), other)
    assert control_trials([], other) == []


def test_counts_deployment_and_order_are_no_part_of_the_method(tmp_path: Path) -> None:
    more = replace(SHORT, trials=99, deployment="x", rule="curtailed", spread=8, agent_trials=3)
    assert more.method() == SHORT.method()
    assert control_file(tmp_path, SHORT, ["m", "i", "p"]) == control_file(tmp_path, more, ["m", "i", "p"])
    assert control_file(tmp_path, SHORT, ["m", "i", "p"]) != control_file(tmp_path, SHORT, ["m", "i", "q"])


def lengths(ratio: float) -> list[Record]:
    rows = [{"kind": "plan", "plan": "p", "planned": [f"short-{i:04d}" for i in range(40)], "rule": "any"}]
    for kind, scale in (("trial", ratio), ("control-trial", 1.0)):
        for index in range(40):
            tokens = round(scale * (30 + index % 20))
            row = {"kind": kind, "plan": "p", "trial": f"short-{index:04d}", "task": "short", "class": "OK"}
            rows.append(row | {"text": "Paris.", "finish_reason": "stop", "usage": {"completion_tokens": tokens}})
    return rows


def test_answers_that_grow_warn_and_do_not_fail() -> None:
    report = report_from(lengths(2.27), "p")
    drift = report.numbers["control"]["length_drift"]
    assert report.verdict == "PASS"
    assert drift["warn"]
    assert drift["low"] <= drift["ratio"] <= drift["high"]
    assert drift["ratio"] == pytest.approx(2.27, rel=0.03)
    assert any(reason.startswith("warning: healthy answers are 2.3 times as long") for reason in report.reasons)
    assert not report_from(lengths(1.05), "p").numbers["control"]["length_drift"]["warn"]


def test_a_server_that_keeps_requests_of_clients_that_left_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abort_check, "_WAIT_S", 0.7)
    short = replace(SHORT, trials=3)
    # A server without pace may be through with its answer before a client on a busy machine has left.
    report = run("abort-leak", tmp_path / "t.jsonl", short, step_s=0.005)
    assert (report.verdict, report.numbers["abort_freed"]) == ("FAULT", False)
    assert "go on running" in report.reasons[0]
    report = run("healthy", tmp_path / "u.jsonl", short, step_s=0.005)
    assert (report.verdict, report.numbers["abort_freed"]) == ("PASS", True)
    # Others' requests are not taken for ours.
    report = run("busy", tmp_path / "v.jsonl", short)
    assert (report.verdict, report.numbers["abort_freed"]) == ("PASS", None)


def test_every_stored_trial_is_judged_the_same_again(tmp_path: Path) -> None:
    report = run("near-loops", tmp_path / "t.jsonl", SHORT)
    trials = [one for one in on_file(tmp_path / "t.jsonl") if one["kind"] == "trial"]
    assert [judge_trial(one).outcome for one in trials] == [one["class"] for one in trials]
    assert [classify(json.dumps(one)).outcome for one in trials] == [one["class"] for one in trials]
    failed = failing_trials(trials, report.plan)
    assert len(failed) == report.failures
    assert all(classify(one).verdict == "FAIL" for one in failed)


def test_a_class_on_file_that_its_text_denies_does_not_count(tmp_path: Path) -> None:
    report = run("checkpoint-loops", tmp_path / "t.jsonl", SHORT)
    forged = [one | {"class": "OK"} if one["kind"] == "trial" else one for one in on_file(tmp_path / "t.jsonl")]
    assert report_from(forged, report.plan).failures == report.failures


def test_a_dead_server_is_not_asked_on_in_the_next_phase(tmp_path: Path) -> None:
    report = run("dropped", tmp_path / "t.jsonl", replace(SHORT, agent_trials=8, long_trials=8))
    assert report.verdict == "FAULT"
    assert report.errors == 3


def test_budgets_name_what_is_asked(tmp_path: Path) -> None:
    texts: Sequence[str] = (short_plan().budget(), long_plan().budget())
    assert "200 trials, 5 prompts" in texts[0]
    assert "40 long texts, at most 8192 tokens" in texts[1]
    assert all("8 at a time" in text for text in texts)
