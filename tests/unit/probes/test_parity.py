"""Parity: recordings, what makes two of them comparable, and every gate with a yes and a no."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stub_server import StubServer

from shardwright.errors import DeployError, ExitCode, UsageError
from shardwright.probes.edges import Edges
from shardwright.probes.faulty.behaviour import Sizes
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.parity.plan import ParityPlan, full_plan, quick_plan
from shardwright.probes.parity.report import compare, judge_trial, report_from
from shardwright.probes.parity.run import run_parity
from shardwright.probes.report import ProbeReport
from shardwright.probes.score_text import text
from shardwright.probes.server import identify
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint

PLAN = ParityPlan((40, 60, 120), 8, top=5, index_topk=64)
SIZES = Sizes(index_topk=64, deep=100, max_model_len=4096)

Records = list[dict[str, Any]]


def record(mode: str, file: Path, plan: ParityPlan = PLAN) -> ProbeReport:
    with FaultyServer(mode=mode, seed=1, sizes=SIZES) as server, Journal(file) as journal:
        return run_parity(identify(Endpoint(server.base_url, idle_timeout_s=5), None), plan, journal)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    file = tmp_path_factory.mktemp("parity") / "a.jsonl"
    record("healthy", file)
    yield read_records(file)


def changed(records: Records, change: Any, rounds: tuple[str, ...] = ("alone", "loaded")) -> Records:
    """The recording with `change(record)` made to the trials of some rounds."""
    copy: Records = json.loads(json.dumps(records))
    for found in copy:
        if found["kind"] == "trial" and found["round"] in rounds:
            change(found)
    return copy


def shifted(amount: float, *, first: int = 0) -> Any:
    """Every listed logprob of the prompt lower by `amount`, from position `first` on: what is lost goes to the rest."""

    def change(found: dict[str, Any]) -> None:
        for place, flat in enumerate(found["prompt_top"]):
            if place + 1 >= first:
                flat[1::2] = [value - amount for value in flat[1::2]]
                found["prompt_logprobs"][place] -= amount

    return change


def test_a_recording_is_whole_and_can_be_judged_again(tmp_path: Path) -> None:
    report = record("healthy", tmp_path / "a.jsonl")
    assert (report.verdict, report.trials, report.classes) == ("PASS", 6, {"OK": 6})
    records = read_records(tmp_path / "a.jsonl")
    assert report_from(records, report.plan, report.file) == report
    assert all(judge_trial(r).outcome == r["class"] for r in records if r["kind"] == "trial")
    assert report.numbers["noise"]["positions"] == 40 + 60 + 120 - 3


def test_a_recording_that_was_cut_off_is_taken_up(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with FaultyServer(mode="healthy", seed=1, sizes=SIZES) as server:
        seen = identify(Endpoint(server.base_url, idle_timeout_s=5), None)
        with Journal(file) as journal:
            run_parity(seen, PLAN, journal)
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]))
        with Journal(file) as journal:
            report = run_parity(seen, PLAN, journal)
    assert (report.verdict, report.trials) == ("PASS", 6)


def test_the_same_server_again_is_the_same_model(healthy: Records) -> None:
    report = compare(healthy, healthy)
    assert (report.verdict, report.failures, report.classes) == ("PASS", 0, {"EQUAL": 3})
    assert report.numbers["distance"]["mean_kl"] == 0


def test_another_model_is_found_with_its_worst_place(healthy: Records, tmp_path: Path) -> None:
    record("topology-salad", tmp_path / "b.jsonl")
    report = compare(healthy, read_records(tmp_path / "b.jsonl"))
    assert (report.verdict, report.exit_code) == ("FAIL", ExitCode.DRIFT)
    assert report.numbers["distance"]["mean_kl"] > 1
    assert any(reason.startswith("worst at prompt p") for reason in report.reasons)


def test_rounding_passes_and_ten_times_as_much_does_not(healthy: Records) -> None:
    assert compare(healthy, changed(healthy, shifted(0.001))).verdict == "PASS"
    assert compare(healthy, changed(healthy, shifted(0.2))).verdict == "FAIL"


def test_a_fault_past_index_topk_is_not_hidden_by_the_positions_before_it(healthy: Records) -> None:
    report = compare(healthy, changed(healthy, shifted(0.3, first=64)))
    failed = [gate["name"] for gate in report.numbers["gates"] if not gate["holds"]]
    assert "mean KL, positions past 64" in failed
    assert "mean KL, positions up to 64" not in failed


def test_one_bad_prompt_is_not_hidden_by_the_others(healthy: Records) -> None:
    def one(found: dict[str, Any]) -> None:
        if found["trial"].startswith("p0/"):
            shifted(0.15)(found)

    report = compare(healthy, changed(healthy, one))
    assert report.verdict == "FAIL"
    assert report.numbers["worst_prompts"][0]["prompt"] == "p0"


def test_noise_of_the_first_arm_widens_the_limits(healthy: Records) -> None:
    noisy = changed(healthy, shifted(0.1), ("loaded",))
    other = changed(noisy, shifted(0.1), ("alone",))
    assert compare(healthy, other).verdict == "FAIL"
    assert compare(noisy, other).verdict == "PASS"


def test_a_second_recording_of_the_first_arm_widens_them_too(healthy: Records) -> None:
    second = changed(healthy, shifted(0.1))
    other = changed(healthy, shifted(0.12))
    assert compare(healthy, other).verdict == "FAIL"
    assert compare(healthy, other, second).verdict == "PASS"


def test_a_second_arm_that_differs_from_itself_under_load_fails(healthy: Records) -> None:
    report = compare(healthy, changed(healthy, shifted(0.3), ("loaded",)))
    assert report.verdict == "FAIL"
    assert "B one at a time against eight" in report.reasons[0]


def test_a_first_arm_that_is_far_from_itself_proves_nothing(healthy: Records) -> None:
    wild = changed(healthy, shifted(1.5), ("loaded",))
    report = compare(wild, wild)
    assert (report.verdict, report.exit_code) == ("INCONCLUSIVE", ExitCode.INCONCLUSIVE)
    assert report.more_trials is None
    assert "More prompts do not help" in report.reasons[0]


def test_an_answer_that_parts_for_good_fails_and_a_near_tie_does_not(healthy: Records) -> None:
    def part(gap: float) -> Any:
        def change(found: dict[str, Any]) -> None:
            old = found["ids"][3]
            found["ids"][3] = old + 1
            found["top"][3] = [old + 1, -1.0, old, -1.0 - gap]

        return change

    def tie(found: dict[str, Any]) -> None:
        old = found["ids"][3]
        found["top"][3] = [old, -1.0, old + 1, -1.1]

    tied = changed(healthy, tie)
    assert compare(tied, changed(tied, part(0.1))).verdict == "PASS"
    assert compare(tied, changed(tied, part(0.1))).classes == {"NEAR_TIE": 3}
    assert compare(tied, changed(tied, part(0.8))).verdict == "FAIL"
    assert compare(tied, changed(tied, part(0.8))).classes == {"HARD": 3}


def test_a_logprob_that_is_no_number_fails(healthy: Records) -> None:
    def nan(found: dict[str, Any]) -> None:
        if found["trial"] == "p1/alone":
            found["prompt_logprobs"][4] = float("nan")

    broken = changed(healthy, nan)
    report = compare(healthy, broken)
    assert report.verdict == "FAIL"
    assert "p1/alone" in report.reasons[0]
    assert compare(broken, healthy).verdict == "INCONCLUSIVE"
    own = report_from(broken, broken[0]["plan"])
    assert (own.verdict, own.classes) == ("FAIL", {"NONFINITE": 1, "OK": 5})


def test_a_server_that_fails_on_nan_fails_the_recording(tmp_path: Path) -> None:
    # JSON has no NaN, so vLLM answers HTTP 500.
    assert judge_trial({"error": {"detail": "HTTP 500: not JSON compliant", "nan": True}}).outcome == "NONFINITE"
    assert judge_trial({"error": {"detail": "HTTP 500: out of memory"}}).outcome == "ERROR"
    report = record("nan-logprobs", tmp_path / "a.jsonl")
    assert report.verdict in ("FAIL", "FAULT"), report.to_json()


@pytest.mark.parametrize("what", ["model", "prompts_sha256", "method"])
def test_what_was_not_asked_alike_is_not_compared(healthy: Records, what: str) -> None:
    other: Records = json.loads(json.dumps(healthy))
    for found in other:
        if found["kind"] == "plan":
            (found["server"] if what == "model" else found)[what] = "another"
    with pytest.raises(UsageError) as caught:
        compare(healthy, other)
    assert caught.value.code == ExitCode.USAGE
    with pytest.raises(UsageError, match="second recording"):
        compare(healthy, healthy, other)


def test_a_file_without_a_recording_is_refused() -> None:
    with pytest.raises(UsageError, match="no recording"):
        compare([], [])


def test_missing_scores_are_inconclusive(healthy: Records) -> None:
    half = [r for r in healthy if r.get("round") != "loaded"]
    assert (compare(healthy, half).verdict, compare(healthy, half).more_trials) == ("INCONCLUSIVE", 3)
    assert compare(half, healthy).verdict == "INCONCLUSIVE"
    nothing = [r for r in healthy if r["kind"] == "plan"]
    assert compare(healthy, nothing).verdict == "FAULT"
    assert report_from(half, half[0]["plan"]).more_trials == 3


def test_a_server_without_prompt_logprobs_is_refused(tmp_path: Path) -> None:
    with (
        StubServer("healthy") as server,
        Journal(tmp_path / "a.jsonl") as journal,
        pytest.raises(DeployError) as caught,
    ):
        run_parity(identify(Endpoint(server.base_url), None), PLAN, journal)
    assert caught.value.code == ExitCode.INCONCLUSIVE


def test_plans_reach_past_index_topk_and_keep_their_room() -> None:
    edges = Edges(index_topk=2048, max_len=8192)
    assert max(quick_plan(edges).lengths) == 2304
    assert quick_plan(edges).warning() is None
    assert full_plan(Edges()).lengths == (512,) * 16
    short = full_plan(Edges(index_topk=2048, max_len=600))
    assert max(short.lengths) + short.answer_tokens <= 600
    assert "cannot detect indexer faults" in str(short.warning())
    assert "requests" in short.budget()
    with pytest.raises(UsageError):
        quick_plan(Edges(max_len=16))


def test_the_method_does_not_depend_on_who_is_asked() -> None:
    assert PLAN.method() == replace(PLAN, deployment="x").method()
    assert PLAN.method() != replace(PLAN, seed=2).method()


def test_texts_grow_without_changing_their_beginning() -> None:
    for number in range(4):
        short, long = text(number, 20, 1), text(number, 60, 1)
        assert long.startswith(short[: len(short) - 40])
        assert text(number, 20, 1) == short != text(number, 20, 2)
    assert len({text(number, 20, 1) for number in range(8)}) == 8
