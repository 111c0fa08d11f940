"""Repeat, and one prompt over two boots: what changes with traffic or with a boot, against the server's own noise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import ExitCode
from shardwright.probes.edges import Edges
from shardwright.probes.faulty.behaviour import Sizes
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.repeat.report import ASKS, compare_boots, judge_trial, report_from
from shardwright.probes.repeat.run import RepeatPlan, full_plan, quick_plan, run_repeat
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import identify
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint

PLAN = RepeatPlan((80, 120), (20, 150), index_topk=64, answer_tokens=6, top=3)
SIZES = Sizes(index_topk=64, deep=100, max_model_len=4096)

Records = list[dict[str, Any]]


def ask(mode: str, file: Path, plan: RepeatPlan = PLAN) -> ProbeReport:
    with FaultyServer(mode=mode, seed=1, sizes=SIZES) as server, Journal(file) as journal:
        return run_repeat(identify(Endpoint(server.base_url, idle_timeout_s=5), None), plan, journal)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    file = tmp_path_factory.mktemp("repeat") / "a.jsonl"
    ask("healthy", file)
    yield read_records(file)


def moved(records: Records, amounts: dict[str, float], *, tokens: slice = slice(None)) -> Records:
    """The records with logprobs of some askings moved by an amount."""
    copy: Records = json.loads(json.dumps(records))
    for found in copy:
        for asking in found.get("asks", ()):
            values = asking["prompt_logprobs"]
            values[tokens] = [value - amounts.get(asking["ask"], 0.0) for value in values[tokens]]
    return copy


def verdict(records: Records) -> str:
    return report_from(records, records[0]["plan"]).verdict


def test_a_healthy_server_says_the_same_and_its_report_can_be_had_again(tmp_path: Path) -> None:
    report = ask("healthy", tmp_path / "t.jsonl")
    assert (report.verdict, report.classes) == ("PASS", {"SAME": 2})
    records = read_records(tmp_path / "t.jsonl")
    assert report_from(iter(records), report.plan, report.file) == report
    trials = [r for r in records if r["kind"] == "trial"]
    assert all(judge_trial(r).outcome == r["class"] for r in trials)
    assert all([a["ask"] for a in r["asks"]] == list(ASKS) for r in trials)


@pytest.mark.parametrize("mode", ["stale-index", "topk-race"])
def test_an_answer_that_depends_on_other_traffic_fails(mode: str, tmp_path: Path) -> None:
    report = ask(mode, tmp_path / "t.jsonl")
    assert (report.verdict, report.exit_code) == ("FAIL", ExitCode.DRIFT)
    assert set(report.classes) == {"CHANGED"}


def test_prompts_up_to_index_topk_do_not_show_it_and_that_is_said(tmp_path: Path) -> None:
    plan = RepeatPlan((40, 50), (20,), index_topk=64, answer_tokens=6, top=3)
    report = ask("stale-index", tmp_path / "t.jsonl", plan)
    assert report.verdict == "PASS"
    assert any("cannot detect indexer faults" in reason for reason in report.reasons)
    assert plan.warning() is not None
    assert PLAN.warning() is None


def test_other_traffic_lies_between_the_first_and_the_second_asking(tmp_path: Path) -> None:
    with FaultyServer(mode="healthy", seed=1, sizes=SIZES) as server, Journal(tmp_path / "t.jsonl") as journal:
        run_repeat(identify(Endpoint(server.base_url), None), PLAN, journal)
        bodies = [b for b in server.requests if isinstance(b.get("prompt"), list)]
    names = [len(b["prompt"]) for b in bodies]
    assert names[0] == 80
    assert sorted(names[1:3]) == [20, 150]
    assert names[3:7] == [80, 80, 80, 120]
    salts = [b["cache_salt"] for b in bodies if "cache_salt" in b]
    assert len(set(salts)) == len(salts) == 8


def test_noise_back_to_back_is_no_change_and_more_than_it_is(healthy: Records) -> None:
    assert verdict(moved(healthy, {"before": 0.015})) == "PASS"
    assert verdict(moved(healthy, {"before": 0.05})) == "FAIL"
    assert verdict(moved(healthy, {"before": 0.05, "once-more": 0.03})) == "PASS"
    assert verdict(moved(healthy, {"before": 0.2, "once-more": 0.03})) == "FAIL"


def test_noise_excuses_only_so_much(healthy: Records) -> None:
    assert verdict(moved(healthy, {"before": 0.8, "once-more": 0.8})) == "FAIL"


def test_a_single_token_far_off_is_seen(healthy: Records) -> None:
    report = report_from(moved(healthy, {"before": 0.7}, tokens=slice(60, 61)), healthy[0]["plan"])
    assert report.verdict == "FAIL"
    assert "prompt token 61" in report.reasons[0]


def test_a_single_token_is_seen_in_a_long_prompt_where_the_p99_does_not_move(healthy: Records) -> None:
    long: Records = json.loads(json.dumps(healthy))
    for found in long:
        for asking in found.get("asks", ()):
            asking["prompt_logprobs"] = [-1.0] * 400
    assert verdict(moved(long, {"before": 0.4}, tokens=slice(60, 61))) == "PASS"
    report = report_from(moved(long, {"before": 0.6}, tokens=slice(60, 61)), long[0]["plan"])
    assert report.verdict == "FAIL"
    assert "a logprob moves by 0.6 nats, most at prompt token 61" in report.reasons[0]


def test_an_answer_that_parts_by_preference_fails(healthy: Records) -> None:
    def parted(gap: float) -> Records:
        copy: Records = json.loads(json.dumps(healthy))
        for found in copy:
            for asking in found.get("asks", ()):
                old = asking["ids"][2]
                first, second = (old + 1, old) if asking["ask"] == "before" else (old, old + 1)
                asking["ids"][2] = first
                asking["top"][2] = [first, -1.0, second, -1.0 - gap]
        return copy

    assert verdict(parted(0.1)) == "PASS"
    assert verdict(parted(0.8)) == "FAIL"


def test_a_logprob_that_is_no_number_fails(healthy: Records) -> None:
    report = report_from(moved(healthy, {"again": float("nan")}), healthy[0]["plan"])
    assert (report.verdict, report.classes) == ("FAIL", {"NONFINITE": 2})


def test_lost_trials_are_inconclusive_and_none_is_a_fault(healthy: Records) -> None:
    one = [r for r in healthy if r.get("trial") != "p1"]
    assert report_from(one, one[0]["plan"]).verdict == "INCONCLUSIVE"
    none = [r for r in healthy if r["kind"] == "plan"]
    gone = {
        "kind": "trial",
        "probe": "repeat",
        "plan": none[0]["plan"],
        "trial": "p0",
        "class": "ERROR",
        "detail": "gone",
    }
    report = report_from([*none, gone], none[0]["plan"])
    assert (report.verdict, report.reasons) == ("FAULT", ("no prompt was answered: gone",))
    assert judge_trial({"asks": []}).outcome == "ERROR"


def test_a_boot_like_the_other_passes(healthy: Records, tmp_path: Path) -> None:
    ask("healthy", tmp_path / "b.jsonl")
    report = compare_boots(healthy, read_records(tmp_path / "b.jsonl"))
    assert (report.probe, report.verdict, report.classes) == ("boots", "PASS", {"SAME": 2})


def test_weights_that_nobody_loaded_show_between_boots_only(healthy: Records) -> None:
    other = moved(healthy, dict.fromkeys(ASKS, 0.4))
    assert verdict(other) == "PASS"
    report = compare_boots(healthy, other)
    assert report.verdict == "FAIL"
    assert "memory that nobody wrote" in report.reasons[-1]


def test_boots_that_were_asked_otherwise_are_not_compared(healthy: Records) -> None:
    other: Records = json.loads(json.dumps(healthy))
    other[0]["method"] = "another"
    assert compare_boots(healthy, other).verdict == "INCONCLUSIVE"
    assert compare_boots(healthy, []).verdict == "FAULT"
    half = [r for r in healthy if r.get("trial") != "p1"]
    assert compare_boots(healthy, half).verdict == "INCONCLUSIVE"


def test_plans_reach_past_index_topk_and_keep_their_room() -> None:
    edges = Edges(index_topk=2048, max_len=65_536)
    assert all(length > 2048 for length in full_plan(edges).lengths)
    small = quick_plan(Edges(max_len=300))
    assert max(small.lengths) + small.answer_tokens <= 300
    assert max(small.traffic_lengths) <= 300
    assert "other traffic" in small.budget()
