"""The needle probe against a server over sockets: healthy, and with one fault at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from stub_server import StubServer

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.edges import Edges
from shardwright.probes.faulty.behaviour import Sizes
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.needle.judge import judge_trial
from shardwright.probes.needle.plan import NeedlePlan, own_plan
from shardwright.probes.needle.report import report_from
from shardwright.probes.needle.run import run_needle
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import identify
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint

SIZES = Sizes(index_topk=256, deep=400, max_model_len=4096)
EDGES = Edges(index_topk=256, max_len=4096)

Start = Callable[..., FaultyServer]


@pytest.fixture
def faulty() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda mode="healthy": stack.enter_context(FaultyServer(mode=mode, seed=1, sizes=SIZES))


def plan(*lengths: int, **more: Any) -> NeedlePlan:
    return own_plan(EDGES, lengths or (200, 257, 420), (50,), **more)


def ask(url: str, asked: NeedlePlan, file: Path) -> ProbeReport:
    with Journal(file) as journal:
        return run_needle(identify(Endpoint(url, idle_timeout_s=5), None), asked, journal)


def test_a_healthy_server_passes_and_every_number_can_be_had_again(faulty: Start, tmp_path: Path) -> None:
    report = ask(faulty().base_url, plan(), tmp_path / "t.jsonl")
    assert (report.verdict, report.classes, report.reasons) == ("PASS", {"EXACT": 14}, ())
    records = read_records(tmp_path / "t.jsonl")
    assert report_from(records, report.plan, report.file) == report
    trials = [record for record in records if record["kind"] == "trial"]
    assert all(judge_trial(trial).outcome == trial["class"] for trial in trials)
    assert all(trial["prompt_tokens"] == trial["target_tokens"] for trial in trials)
    assert all(trial["tokenize_calls"] <= 8 for trial in trials)


def test_cold_misses_the_cache_and_warm_hits_it(faulty: Start, tmp_path: Path) -> None:
    ask(faulty().base_url, plan(), tmp_path / "t.jsonl")
    trials = [r for r in read_records(tmp_path / "t.jsonl") if r["kind"] == "trial"]
    assert {r["cache_hits"] for r in trials if r["pass"] == "cold"} == {0}
    assert all(r["cache_hits"] > 0 for r in trials if r["pass"] == "warm")


@pytest.mark.parametrize(
    "mode, verdict, found",
    [
        ("topk-cliff", "FAIL", "DISTRACTOR"),
        ("blind-indexer", "FAIL", "WRONG"),
        ("pp-long-needle", "FAIL", "ABSTAIN"),
        ("salt-ignored", "INCONCLUSIVE", "EXACT"),
    ],
)
def test_each_fault_has_its_class(faulty: Start, tmp_path: Path, mode: str, verdict: str, found: str) -> None:
    report = ask(faulty(mode).base_url, plan(), tmp_path / "t.jsonl")
    assert report.verdict == verdict, report.to_json()
    assert found in report.classes


def test_a_fault_of_one_residue_is_found_and_named(faulty: Start, tmp_path: Path) -> None:
    report = ask(faulty("residue-digit").base_url, plan(*range(300, 308)), tmp_path / "t.jsonl")
    assert (report.verdict, report.classes["NEAR"]) == ("FAIL", 4)
    assert "every loss is at a length of 3 mod 4" in report.reasons


def test_a_fault_that_thinking_hides_is_found_without_it(faulty: Start, tmp_path: Path) -> None:
    report = ask(faulty("residue-digit").base_url, plan(303, 307, thinking=True), tmp_path / "t.jsonl")
    assert report.numbers["by_pass"]["thinking"] == {"failures": 0, "trials": 2}
    assert report.numbers["by_pass"]["cold"] == {"failures": 2, "trials": 2}


def test_thinking_is_asked_for_and_seen(faulty: Start, tmp_path: Path) -> None:
    report = ask(faulty().base_url, plan(300, thinking=True), tmp_path / "t.jsonl")
    trials = [r for r in read_records(tmp_path / "t.jsonl") if r["kind"] == "trial"]
    assert report.verdict == "PASS"
    assert [bool(r["reasoning"]) for r in trials if r["pass"] == "thinking"] == [True]
    assert not any(r["reasoning"] for r in trials if r["pass"] != "thinking")


def test_a_cache_that_gives_back_something_else_loses_warm_needles_only(faulty: Start, tmp_path: Path) -> None:
    report = ask(faulty("cache-hit-salad").base_url, plan(), tmp_path / "t.jsonl")
    assert report.verdict == "FAIL"
    assert report.numbers["by_pass"]["cold"]["failures"] == 0
    assert report.numbers["by_pass"]["warm"]["failures"] == 3
    assert any("prefix cache" in reason for reason in report.reasons)


def test_a_fault_under_load_shows_in_the_concurrent_pass(faulty: Start, tmp_path: Path) -> None:
    report = ask(faulty("load-garbage").base_url, plan(), tmp_path / "t.jsonl")
    assert report.verdict == "FAIL"
    assert report.numbers["by_pass"]["cold"]["failures"] == 0
    assert report.numbers["by_pass"]["concurrent"]["failures"] > 0


def test_a_run_that_was_cut_off_is_taken_up(faulty: Start, tmp_path: Path) -> None:
    server = faulty()
    file = tmp_path / "t.jsonl"
    ask(server.base_url, plan(), file)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]) + b'{"kind": "tri')
    on_file = [json.loads(line)["trial"] for line in lines[:4] if b'"trial"' in line]
    report = ask(server.base_url, plan(), file)
    assert (report.verdict, report.trials) == ("PASS", 14)
    asked = [r["trial"] for r in read_records(file) if r["kind"] == "trial"]
    assert len(asked) == len(set(asked)) == 14
    assert asked[: len(on_file)] == on_file


def test_a_warm_trial_of_a_later_run_is_warm(faulty: Start, tmp_path: Path) -> None:
    server, file = faulty(), tmp_path / "t.jsonl"
    ask(server.base_url, plan(300), file)
    lines = file.read_bytes().splitlines(keepends=True)
    cold = [line for line in lines if b"/warm" not in line or b'"kind": "plan"' in line]
    file.write_bytes(b"".join(line for line in cold if b'"kind": "result"' not in line))
    ask(server.base_url, plan(300), file)
    (warm,) = [r for r in read_records(file) if str(r.get("trial")).endswith("/warm")]
    assert warm["cache_hits"] > 0


def test_lengths_too_short_for_the_question_are_left_out_or_refused(faulty: Start, tmp_path: Path) -> None:
    server = faulty()
    report = ask(server.base_url, plan(20, 300), tmp_path / "a.jsonl")
    assert report.verdict == "PASS"
    assert "left out: 20" in "".join(report.reasons)
    with pytest.raises(DeployError) as caught:
        ask(server.base_url, plan(20), tmp_path / "b.jsonl")
    assert caught.value.code == ExitCode.USAGE


def test_a_server_without_a_tokenizer_cannot_be_sized(tmp_path: Path) -> None:
    with StubServer("healthy") as server, pytest.raises(DeployError) as caught:
        ask(server.base_url, plan(), tmp_path / "t.jsonl")
    assert caught.value.code == ExitCode.INCONCLUSIVE


def test_models_without_a_chat_template_are_asked_by_completions(faulty: Start, tmp_path: Path) -> None:
    server = faulty()
    report = ask(server.base_url, plan(300, api="completions"), tmp_path / "t.jsonl")
    assert report.trials == 10
    bodies = [body for body in server.requests if "needle-" in str(body.get("cache_salt"))]
    assert bodies
    assert all(body["prompt"].endswith("\nAnswer:") and body["stop"] == ["\n"] for body in bodies)


def test_the_salts_are_ones_that_vllm_takes(faulty: Start, tmp_path: Path) -> None:
    server = faulty()
    ask(server.base_url, plan(), tmp_path / "t.jsonl")
    salts = [body["cache_salt"] for body in server.requests if "cache_salt" in body and body.get("stream")]
    assert all(len(salt) <= 128 and not set(salt) & set("@/\\\0") for salt in salts)
    assert len(set(salts)) == len(salts) - 3, "each warm trial shares the salt of its cold one"


def test_a_lost_needle_is_asked_for_again_with_a_cold_cache(faulty: Start, tmp_path: Path) -> None:
    server = faulty("topk-cliff")
    ask(server.base_url, plan(300), tmp_path / "t.jsonl")
    trials = {r["pass"]: r for r in read_records(tmp_path / "t.jsonl") if r["kind"] == "trial"}
    assert [again["cache_hits"] for again in trials["cold"]["again"]] == [0, 0]
    assert all(again["cache_hits"] > 0 for again in trials["warm"]["again"])


def test_a_server_that_stalls_on_long_prompts_is_found_and_not_waited_for_all_day(tmp_path: Path) -> None:
    with FaultyServer(mode="deep-stall", seed=1, sizes=SIZES) as server, Journal(tmp_path / "t.jsonl") as journal:
        seen = identify(Endpoint(server.base_url, idle_timeout_s=0.2), None)
        report = run_needle(seen, plan(300, 410, 420, 430, 440), journal)
    assert report.verdict == "FAIL"
    assert report.classes["STALL"] == 3
    assert report.trials < 14


def test_three_lost_connections_end_the_run_without_a_verdict_on_the_model(faulty: Start, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = FaultyServer(mode="healthy", seed=1, sizes=SIZES)
        running = stack.enter_context(server)
        seen = identify(Endpoint(running.base_url, idle_timeout_s=5), None)
        assert seen.capabilities.tokenize
        with Journal(tmp_path / "t.jsonl") as journal:
            stop_after = 5

            def leave(progress: Any) -> None:
                if progress.done == stop_after:
                    stack.close()

            with pytest.raises(DeployError):
                # Nobody answers /tokenize either, so the next text cannot be made.
                report = run_needle(seen, plan(200, 210, 220, 230), journal, on_progress=leave)
                assert report.verdict in ("INCONCLUSIVE", "FAULT")
                raise DeployError(report.verdict)
