from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stub_server import StubServer

from shardwright.errors import DeployError, ExitCode, UsageError
from shardwright.probes import pool
from shardwright.probes.degen.plan import DegenPlan
from shardwright.probes.degen.prompts import IDENTITY, ROTATION, own_prompts
from shardwright.probes.degen.run import run_degen
from shardwright.probes.journal import Journal
from shardwright.probes.pool import Progress
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import identify
from shardwright.probes.wire import Endpoint, TransportError

Start = Callable[[str], StubServer]
PLAN = DegenPlan(ROTATION, trials=10, api="chat", max_tokens=600)


def run(server: StubServer, file: Path, plan: DegenPlan = PLAN, **options: Any) -> ProbeReport:
    known = identify(Endpoint(server.base_url, idle_timeout_s=2 if server.mode == "stalls" else 30), None)
    with Journal(file) as journal:
        return run_degen(known, plan, journal, **options)


def keys(n: int) -> list[str]:
    return [f"short-{index:04d}" for index in range(n)]


def trials_on_file(file: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [record for record in records if record["kind"] == "trial"]


def test_a_healthy_server_passes_with_the_bound_beside_the_count(stub: Start, tmp_path: Path) -> None:
    result = run(stub("healthy"), tmp_path / "t.jsonl", replace(PLAN, trials=40))
    assert (result.verdict, result.exit_code) == ("PASS", ExitCode.OK)
    assert (result.trials, result.failures, result.errors) == (40, 0, 0)
    assert result.numbers["upper_bound"] == pytest.approx(0.0722, abs=5e-5)
    assert result.classes == {"OK": 40}
    assert result.numbers["per_prompt"] == {prompt.id: {"failures": 0, "trials": 8} for prompt in ROTATION}


@pytest.mark.parametrize(
    "mode, outcome",
    [
        ("loop", "LOOP_EXACT"),
        ("reasoning-loop", "LOOP_EXACT"),
        ("runaway", "RUNAWAY"),
        ("garbage", "GARBAGE"),
        ("one-character", "GARBAGE"),
        ("empty", "EMPTY"),
        ("reasoning-only", "EMPTY"),
    ],
)
def test_each_degenerate_answer_is_found_and_named(stub: Start, tmp_path: Path, mode: str, outcome: str) -> None:
    result = run(stub(mode), tmp_path / "t.jsonl", replace(PLAN, trials=3))
    assert (result.verdict, result.exit_code) == ("FAIL", ExitCode.DRIFT)
    assert result.classes == {outcome: 3}
    assert result.failures == 3


@pytest.mark.parametrize("mode", ["byte-by-byte", "no-ids", "strict", "u2028", "no-health"])
def test_a_healthy_server_of_another_kind_passes_too(stub: Start, tmp_path: Path, mode: str) -> None:
    assert run(stub(mode), tmp_path / "t.jsonl").verdict == "PASS"


def test_a_loop_without_token_ids_is_found_in_words(stub: Start, tmp_path: Path) -> None:
    server = stub("loop")
    result = run(server, tmp_path / "t.jsonl", replace(PLAN, api="completions", trials=2))
    assert result.classes == {"LOOP_EXACT": 2}
    assert {trial["token_source"] for trial in trials_on_file(tmp_path / "t.jsonl")} == {"ids"}
    server.mode = "no-ids"
    server.script = lambda body, number: StubServer.script(_looping(server), body, number)  # type: ignore[method-assign]
    result = run(server, tmp_path / "u.jsonl", replace(PLAN, trials=2))
    assert result.classes == {"LOOP_EXACT": 2}
    assert {trial["token_source"] for trial in trials_on_file(tmp_path / "u.jsonl")} == {"words"}


def _looping(server: StubServer) -> StubServer:
    twin = object.__new__(StubServer)
    twin.__dict__.update(server.__dict__, mode="loop")
    return twin


def test_one_looping_answer_in_four_fails_and_is_counted_right(stub: Start, tmp_path: Path) -> None:
    result = run(stub("some-loops"), tmp_path / "t.jsonl", replace(PLAN, trials=40))
    assert result.verdict == "FAIL"
    assert (result.failures, result.classes) == (10, {"LOOP_EXACT": 10, "OK": 30})
    assert result.numbers["upper_bound"] == pytest.approx(0.3871, abs=5e-4)


def test_a_looping_trial_is_given_up_at_once_and_keeps_its_text(stub: Start, tmp_path: Path) -> None:
    server = stub("loop")
    run(server, tmp_path / "t.jsonl", replace(PLAN, trials=2, max_tokens=100_000))
    deadline = time.monotonic() + 10
    while server.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.running == 0
    for trial in trials_on_file(tmp_path / "t.jsonl"):
        assert trial["aborted"]
        assert trial["tokens"] == 203
        assert trial["text"].startswith("Right answer. the same three words the same")
        assert trial["loop"] == {"period_tokens": 4, "covered_tokens": 200, "at_token": 203}


def test_seeds_are_distinct_and_the_same_in_every_run(stub: Start, tmp_path: Path) -> None:
    server = stub("healthy")
    run(server, tmp_path / "a.jsonl")
    run(server, tmp_path / "b.jsonl")
    seeds = [body["seed"] for body in server.requests]
    half = len(seeds) // 2
    assert seeds[:half] == seeds[half:]
    assert len(set(seeds)) == PLAN.trials
    assert {(body["temperature"], body["top_p"]) for body in server.requests} == {(0.8, 0.9)}


def test_some_lost_trials_are_neither_pass_nor_failure(stub: Start, tmp_path: Path) -> None:
    server = stub("some-http-500")
    result = run(server, tmp_path / "t.jsonl")
    assert (result.verdict, result.exit_code) == ("INCONCLUSIVE", ExitCode.INCONCLUSIVE)
    assert result.errors > 0
    assert result.trials + result.errors == PLAN.trials
    assert result.classes["ERROR"] == result.errors
    assert "EngineCore" in result.numbers["last_error"]
    server.mode = "healthy"
    again = run(server, tmp_path / "t.jsonl")
    assert (again.verdict, again.trials, again.errors) == ("PASS", 10, 0)
    assert len(trials_on_file(tmp_path / "t.jsonl")) == 10 + result.errors


@pytest.mark.parametrize("mode", ["http-500", "truncated", "no-finish", "ends-early", "error-in-stream", "not-json"])
def test_no_answer_at_all_is_a_fault_of_the_harness(stub: Start, tmp_path: Path, mode: str) -> None:
    server = stub(mode)
    result = run(server, tmp_path / "t.jsonl")
    assert (result.verdict, result.exit_code) == ("FAULT", ExitCode.HARNESS)
    assert (result.trials, result.numbers["upper_bound"]) == (0, 1.0)
    # It does not go on asking a dead server.
    assert len(server.requests) <= 5


@pytest.mark.parametrize("mode", ["stalls", "refuses-key", "no-template"])
def test_a_request_that_cannot_be_served_ends_the_run(stub: Start, tmp_path: Path, mode: str) -> None:
    with pytest.raises(DeployError) as caught:
        run(stub(mode), tmp_path / "t.jsonl")
    assert caught.value.code == ExitCode.HARNESS
    assert mode != "no-template" or "--api completions" in caught.value.fix


def test_a_server_that_goes_away_ends_the_run_as_incomplete(stub: Start, tmp_path: Path) -> None:
    server = stub("healthy")

    def leave(progress: Progress) -> None:
        if progress.done == 4:
            server.mode = "http-500"

    result = run(server, tmp_path / "t.jsonl", on_progress=leave)
    assert result.verdict == "INCONCLUSIVE"
    assert (result.trials, result.errors) == (4, 3)


def test_a_degenerate_trial_stands_even_when_others_are_lost(stub: Start, tmp_path: Path) -> None:
    server = stub("loop")

    def break_down(progress: Progress) -> None:
        if progress.done == 2:
            server.mode = "http-500"

    assert run(server, tmp_path / "t.jsonl", on_progress=break_down).exit_code == ExitCode.DRIFT


def test_nobody_there_is_an_error_and_no_verdict(free_port: int, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="nobody answers"):
        identify(Endpoint(f"http://127.0.0.1:{free_port}"), None)


def test_finished_trials_are_not_repeated_after_a_kill(stub: Start, tmp_path: Path) -> None:
    server, file = stub("healthy"), tmp_path / "t.jsonl"
    run(server, file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:7]) + lines[7][:30])
    before = len(server.requests)
    result = run(server, file)
    assert (result.verdict, result.trials) == ("PASS", 10)
    # One request finds out what the server takes; four trials were missing.
    assert len(server.requests) - before == 5
    assert sorted(trial["trial"] for trial in trials_on_file(file)) == keys(10)


def test_a_finished_run_of_the_same_plan_asks_nothing_and_more_trials_are_added(stub: Start, tmp_path: Path) -> None:
    server, file = stub("healthy"), tmp_path / "t.jsonl"
    run(server, file)
    before = len(server.requests)
    assert run(server, file).trials == 10
    assert len(server.requests) == before
    assert run(server, file, replace(PLAN, trials=15)).trials == 15
    # Five were missing; one request finds out what the server takes.
    assert len(server.requests) == before + 6
    assert run(server, file, replace(PLAN, trials=4)).trials == 4
    assert len(server.requests) == before + 6


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAN, prompts=(IDENTITY,)),
        replace(PLAN, max_tokens=601),
        replace(PLAN, api="completions"),
        replace(PLAN, deployment="another"),
    ],
)
def test_trials_of_another_plan_do_not_count(stub: Start, tmp_path: Path, other: DegenPlan) -> None:
    server, file = stub("healthy"), tmp_path / "t.jsonl"
    run(server, file)
    before = len(server.requests)
    assert run(server, file, other).trials == 10
    assert len(server.requests) == before + 11


def test_trials_of_an_earlier_boot_do_not_count(stub: Start, tmp_path: Path) -> None:
    server, file = stub("healthy"), tmp_path / "t.jsonl"
    run(server, file)
    server.started_at = "2000.5"
    before = len(server.requests)
    run(server, file)
    assert len(server.requests) == before + 11


def test_concurrent_trials_are_all_made_once(stub: Start, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    result = run(stub("healthy"), file, replace(PLAN, trials=40), concurrency=8)
    assert result.trials == 40
    assert sorted(trial["trial"] for trial in trials_on_file(file)) == keys(40)


def test_progress_counts_up_with_an_estimate(stub: Start, tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(stub("healthy"), tmp_path / "t.jsonl", on_progress=seen.append)
    assert [progress.done for progress in seen] == list(range(11))
    assert seen[0].eta_s is None
    assert all(progress.eta_s is not None for progress in seen[1:])
    assert seen[-1].eta_s == 0


def test_an_interrupt_ends_the_run_and_leaves_whole_trials(stub: Start, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"

    def interrupt(progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stub("healthy"), file, on_progress=interrupt)
    assert len(trials_on_file(file)) == 3
    assert run(stub("healthy"), file).trials == 10


def test_nothing_is_written_after_an_interrupt_of_the_waiting_thread(
    stub: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(pool.threading, "Thread", Interrupted)
    file = tmp_path / "t.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(stub("healthy"), file, replace(PLAN, trials=400))
    # Whoever opens a file next gets the number of the closed one; a late trial must not be written there.
    size = file.stat().st_size
    with (tmp_path / "other").open("ab") as other:
        time.sleep(0.5)
        assert (file.stat().st_size, os.fstat(other.fileno()).st_size) == (size, 0)


def test_json_keeps_the_promised_keys(stub: Start, tmp_path: Path) -> None:
    result = run(stub("some-loops"), tmp_path / "t.jsonl").to_json()
    assert json.loads(json.dumps(result)) == result
    assert {"verdict", "trials", "failures", "upper_bound", "classes", "p_value_vs_control"} <= set(result)
    assert result["p_value_vs_control"] is None


def test_the_result_is_on_file_with_its_plan(stub: Start, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    result = run(stub("healthy"), file)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["kind"] for record in records] == ["plan"] + ["trial"] * 10 + ["result"]
    assert {record["plan"] for record in records} == {result.plan}
    assert records[0]["request"]["prompts"][4]["text"] == IDENTITY.text


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        own_prompts(["ok", " "])
