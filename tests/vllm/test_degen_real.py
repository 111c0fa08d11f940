"""The degeneration probe and the stream client on a real engine: tasks, control, dropped requests, true streams."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from served import MODEL

from shardwright.probes.client import GREEDY, Answer, Request, complete
from shardwright.probes.degen.plan import DegenPlan
from shardwright.probes.degen.prompts import own_prompts
from shardwright.probes.degen.report import report_from
from shardwright.probes.degen.run import run_degen
from shardwright.probes.journal import Journal
from shardwright.probes.metrics import RUNNING, read_metrics, require_idle
from shardwright.probes.server import identify
from shardwright.probes.stored import read_records
from shardwright.probes.stream_client import run_streams
from shardwright.probes.wire import Endpoint

pytestmark = pytest.mark.vllm

TAUGHT = DegenPlan(own_prompts(["Who are you?", "What is the capital of France?"]), 12, "chat", 1500)
LOOPING = "lamp stone river lamp stone river lamp stone river lamp stone river"
LOOPS = replace(TAUGHT, prompts=own_prompts([LOOPING]))


def running(endpoint: Endpoint) -> float | None:
    metrics = read_metrics(endpoint)
    assert metrics is not None
    return metrics.value(RUNNING)


def test_the_engine_drops_a_request_whose_client_left(tiny_server: Endpoint, tmp_path: Path) -> None:
    with Journal(tmp_path / "t.jsonl") as journal:
        report = run_degen(identify(tiny_server, MODEL), replace(TAUGHT, spread=8), journal)
    assert (report.verdict, report.classes) == ("PASS", {"OK": 12})
    assert report.numbers["abort_freed"] is True
    assert running(tiny_server) == 0


def test_loops_end_early_at_one_and_at_eight_and_decide_at_the_fourth(tiny_server: Endpoint, tmp_path: Path) -> None:
    began_s = time.perf_counter()
    with Journal(tmp_path / "t.jsonl") as journal:
        report = run_degen(
            identify(tiny_server, MODEL), replace(LOOPS, trials=200, rule="curtailed", spread=8), journal
        )
    assert (report.verdict, set(report.classes)) == ("FAIL", {"LOOP_EXACT"})
    assert report.trials <= 4 + 8
    assert report.numbers["abort_freed"] is True
    assert time.perf_counter() - began_s < 120
    records = read_records(tmp_path / "t.jsonl")
    assert report_from(records, report.plan, report.file) == report
    assert all(one["aborted"] for one in records if one["kind"] == "trial")


def test_a_model_that_loops_by_itself_is_not_blamed_on_the_deployment(tiny_server: Endpoint, tmp_path: Path) -> None:
    server = identify(tiny_server, MODEL)
    with Journal(tmp_path / "control.jsonl") as journal:
        run_degen(server, replace(LOOPS, trials=6), journal, concurrency=6)
        control = journal.records
    with Journal(tmp_path / "t.jsonl") as journal:
        report = run_degen(server, replace(LOOPS, trials=6, rule="curtailed"), journal, concurrency=6, control=control)
    assert report.verdict == "INCONCLUSIVE"
    assert report.numbers["p_value_vs_control"] > 0.05


def test_transcripts_with_tool_messages_are_taken(tiny_server: Endpoint, tmp_path: Path) -> None:
    plan = replace(TAUGHT, trials=0, agent_trials=4, max_tokens=64)
    with Journal(tmp_path / "t.jsonl") as journal:
        report = run_degen(identify(tiny_server, MODEL), plan, journal)
    # So small a model does not answer them rightly; that each has an answer is what is asked here.
    assert (report.trials, report.errors) == (4, 0)


def test_many_streams_give_what_one_by_one_gives(tiny_server: Endpoint) -> None:
    requests = [Request(MODEL, prompt.text, "chat", 60, GREEDY) for prompt in TAUGHT.prompts * 4]
    answers = run_streams(tiny_server, requests)
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, Answer), answer
        assert answer.text == complete(tiny_server, request).text
        assert answer.usage is not None
        assert answer.usage.completion_tokens == answer.tokens
        assert answer.ttft_s is not None
        assert answer.first_byte_s is not None
        assert answer.first_byte_s <= answer.ttft_s <= answer.elapsed_s
    assert running(tiny_server) == 0


def test_what_the_engine_can_be_asked(tiny_server: Endpoint) -> None:
    found = identify(tiny_server, MODEL).capabilities
    assert found.chat
    assert found.completions
    assert found.extensions
    assert found.tokenize
    assert found.return_token_ids
    assert found.cache_salt
    assert found.prompt_logprobs
    assert found.logprobs
    assert found.metrics
    assert found.max_model_len == 2048
    assert require_idle(tiny_server)
