from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shardwright.probes.client import GREEDY, Answer, Request, complete, stream
from shardwright.probes.faulty.asked import read_request
from shardwright.probes.faulty.behaviour import Sizes
from shardwright.probes.faulty.brain import answer
from shardwright.probes.faulty.faults import FAULTS, behaviour_of
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.faulty.tokenizer import Tokenizer, pieces
from shardwright.probes.metrics import PREFIX_HITS, read_metrics
from shardwright.probes.server import identify
from shardwright.probes.smoke.run import run_smoke
from shardwright.probes.wire import Endpoint, TransportError, post_json

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


@pytest.fixture
def healthy() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


def endpoint(server: FaultyServer) -> Endpoint:
    return Endpoint(server.base_url, idle_timeout_s=2.0)


def request(server: FaultyServer, prompt: str, max_tokens: int = 200, **fields: Any) -> Request:
    return Request(server.model, prompt, "chat", max_tokens, GREEDY, fields=fields)


def streamed(server: FaultyServer, prompt: str, max_tokens: int = 200, **fields: Any) -> Answer:
    return stream(endpoint(server), request(server, prompt, max_tokens, **fields), lambda _: False)


def said(question: str, **body: Any) -> str:
    return answer(read_request("chat", {"messages": [{"role": "user", "content": question}], **body})).text


def post(server: FaultyServer, path: str, **body: Any) -> Any:
    reply = post_json(endpoint(server), path, {"model": server.model, **body})
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


def test_a_healthy_server_passes_every_smoke_check(healthy: FaultyServer) -> None:
    result = run_smoke(endpoint(healthy), healthy.model)
    assert [check for check in result.checks if check.status != "PASS"] == []


def test_a_healthy_server_can_do_everything(healthy: FaultyServer) -> None:
    found = identify(endpoint(healthy), None).capabilities
    missing = [name for name in found.__dataclass_fields__ if not getattr(found, name)]
    assert missing == []


@pytest.mark.parametrize(
    ("question", "right"),
    [
        ("What is the capital of France? Reply with one word.", "Paris"),
        ("What is 17 plus 25? Reply with the number only.", "42"),
        ("Compute 2 + 3 * 4 - 5.", "9"),
        ("What is 12 x 12?", "144"),
        ("Repeat these ids exactly, one per line, nothing else:\nabc\ndef", "abc\ndef"),
        (
            "The access code for red-fox is 1234567. What is the access code for red-fox? Reply with the number only.",
            "1234567",
        ),
    ],
)
def test_answers_are_right(question: str, right: str) -> None:
    assert said(question, temperature=0) == right


@pytest.mark.parametrize("text", ["Hello, wörld!  x\n\n中文字符很多很多 👋🏽", "", "a" * 50, "\u2028x\u0085"])
def test_the_tokenizer_gives_back_every_text(text: str) -> None:
    tokenizer = Tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "".join(pieces(text)) == text


def test_tokenize_counts_what_usage_counts(healthy: FaultyServer) -> None:
    messages = [{"role": "user", "content": "How are you today?"}]
    counted = post(healthy, "/tokenize", messages=messages)
    usage = post(healthy, "/v1/chat/completions", messages=messages, max_tokens=4, return_token_ids=True)
    assert counted["count"] == usage["usage"]["prompt_tokens"] == len(usage["prompt_token_ids"])
    assert counted["tokens"] == usage["prompt_token_ids"]
    again = post(healthy, "/v1/completions", prompt=counted["tokens"], max_tokens=1)
    assert again["usage"]["prompt_tokens"] == counted["count"]


def test_the_cache_is_salted_and_counted(healthy: FaultyServer) -> None:
    def hits() -> float:
        metrics = read_metrics(endpoint(healthy))
        assert metrics is not None
        return metrics.value(PREFIX_HITS) or 0.0

    long = "word " * 100
    complete(endpoint(healthy), request(healthy, long, 1, cache_salt="a"))
    complete(endpoint(healthy), request(healthy, long, 1, cache_salt="b"))
    assert hits() == 0
    complete(endpoint(healthy), request(healthy, long, 1, cache_salt="a"))
    assert hits() >= 96


def test_tools_are_called_whole_and_streamed(healthy: FaultyServer) -> None:
    question = "Get the weather in Rome for 3 days."
    whole = complete(endpoint(healthy), request(healthy, question, tools=[TOOL]))
    part = streamed(healthy, question, tools=[TOOL])
    assert [(c.name, json.loads(c.arguments)) for c in whole.tool_calls] == [
        ("get_weather", {"city": "Rome", "days": 3})
    ]
    assert [(c.name, c.arguments) for c in part.tool_calls] == [(c.name, c.arguments) for c in whole.tool_calls]
    assert whole.finish_reason == part.finish_reason == "tool_calls"
    assert streamed(healthy, question, max_tokens=3, tools=[TOOL]).finish_reason == "length"


def test_stops_and_limits_are_kept(healthy: FaultyServer) -> None:
    echo = "Repeat these ids exactly, one per line, nothing else:\none\ntwo\nthree"
    assert streamed(healthy, echo, stop=["two"]).text == "one\n"
    cut = streamed(healthy, echo, 2)
    assert (cut.finish_reason, cut.tokens) == ("length", 2)
    assert streamed(healthy, "Who are you?", 40, ignore_eos=True, min_tokens=40).tokens == 40
    with pytest.raises(TransportError) as refused:
        complete(endpoint(healthy), request(healthy, "hi", 10**6))
    assert refused.value.status == 400


def test_logprobs_are_probabilities(healthy: FaultyServer) -> None:
    from math import exp

    body = post(healthy, "/v1/completions", prompt="one two three", max_tokens=5, logprobs=4, prompt_logprobs=4)
    choice = body["choices"][0]
    rows = [list(row.values()) for row in choice["logprobs"]["top_logprobs"]]
    rows += [
        [entry["logprob"] for entry in row.values() if entry["rank"] <= 4] for row in choice["prompt_logprobs"][1:]
    ]
    assert len(rows) == 5 + 2
    assert all(max(row) <= 0 and sum(map(exp, row)) <= 1 for row in rows)


def test_a_responses_answer_has_its_events_in_order(healthy: FaultyServer) -> None:
    reply = post_json(endpoint(healthy), "/v1/responses", {"input": "Who are you?", "stream": True, "temperature": 0})
    events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert (
        events[-1]["response"]["output"][0]["content"][0]["text"]
        == text
        == "I am a language model that answers questions."
    )
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_client_that_leaves_frees_its_request() -> None:
    with FaultyServer(step_s=0.005) as server:
        answer = stream(endpoint(server), request(server, "Write a story.", 1000), lambda _: True)
        assert answer.aborted
        until = time.monotonic() + 5
        while server.running and time.monotonic() < until:
            time.sleep(0.01)
        assert (server.running, server.given_up) == (0, 1)
    with FaultyServer("abort-leak", step_s=0.005) as server:
        stream(endpoint(server), request(server, "Write a story.", 1000), lambda _: True)
        until = time.monotonic() + 5
        while not server.given_up and time.monotonic() < until:
            time.sleep(0.01)
        assert server.running == 1


def test_drafts_are_counted_and_make_steps_of_many_tokens() -> None:
    with FaultyServer(speculative=True) as server:
        answer = streamed(server, "Write a story.", 300)
        metrics = read_metrics(endpoint(server))
        assert metrics is not None
        drafts = metrics.value("vllm:spec_decode_num_drafts_total")
        assert drafts == len(answer.text_times_s) < answer.tokens


def test_the_same_seed_gives_the_same_server() -> None:
    def texts() -> list[str]:
        with FaultyServer("checkpoint-loops", seed=5) as server:
            return [streamed(server, "Who are you?").text for _ in range(12)]

    assert texts() == texts()


def test_requests_that_run_together_are_seen_together() -> None:
    with FaultyServer("load-garbage") as server:
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda: texts.append(streamed(server, "Who are you?").text)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert any(text.startswith("for for") for text in texts)
        assert streamed(server, "Who are you?").text.startswith("I am")


def test_every_fault_is_named_once_and_expected_by_a_probe() -> None:
    ids = [fault.id for fault in FAULTS]
    assert len(set(ids)) == len(ids) >= 28 + 8
    assert [fault.id for fault in FAULTS if not fault.expected] == []
    assert sum(bool(fault.seen) for fault in FAULTS) >= 28
    with pytest.raises(KeyError):
        behaviour_of("no-such-fault")


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("dropped", "truncated"),
        ("half-closed", "truncated"),
        ("no-done", "truncated"),
        ("role-only", "truncated"),
        ("null-finish", "truncated"),
        ("error-in-stream", "server"),
        ("not-json", "protocol"),
        ("dead-engine", "http"),
        ("stall", "timeout"),
    ],
)
def test_faults_of_the_wire_are_faults_of_the_wire(mode: str, kind: str) -> None:
    with FaultyServer(mode) as server:
        quick = Endpoint(server.base_url, idle_timeout_s=0.2)
        with pytest.raises(TransportError) as error:
            stream(quick, request(server, "Who are you?"), lambda _: False)
        assert error.value.kind == kind


def test_a_residue_fault_needs_its_residue() -> None:
    question = (
        "The access code for red-fox is 1234567. {} What is the access code for red-fox? Reply with the number only."
    )
    with FaultyServer("residue-digit") as server:
        answers = [complete(endpoint(server), request(server, question.format("so " * n))) for n in range(4)]
    wrong = [answer.usage.prompt_tokens % 4 for answer in answers if answer.usage and answer.text != "1234567"]
    assert wrong == [3]


def test_a_deep_fault_leaves_short_prompts_alone() -> None:
    question = (
        "The access code for red-fox is 1234567. {} What is the access code for red-fox? Reply with the number only."
    )
    with FaultyServer("pp-long-needle", sizes=Sizes(deep=300)) as server:
        assert complete(endpoint(server), request(server, question.format(""))).text == "1234567"
        assert "no such code" in complete(endpoint(server), request(server, question.format("so " * 400))).text
