"""Each check of the quality probe says yes to the exchanges of a healthy server and no to those of its fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.quality.plan import CHECKS, QualityPlan
from shardwright.probes.quality.run import judge_trial, run_quality
from shardwright.probes.server import identify
from shardwright.probes.wire import Endpoint

Trial = dict[str, Any]
Spoil = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """One trial of each check from a healthy server, by the check's id."""
    file = tmp_path_factory.mktemp("quality") / "t.jsonl"
    with FaultyServer() as server, Journal(file) as journal:
        run_quality(identify(Endpoint(server.base_url), None), QualityPlan(1, 1), journal)
    trials = [json.loads(line) for line in file.read_text().splitlines()]
    return {t["trial"].partition("#")[0]: t for t in trials if t["kind"] == "trial"}


def choice(exchange: dict[str, Any]) -> dict[str, Any]:
    return exchange["reply"]["choices"][0]


def message(exchange: dict[str, Any]) -> dict[str, Any]:
    return choice(exchange)["message"]


def says(text: str, place: int = 0) -> Spoil:
    return lambda exchanges: message(exchanges[place]).update(content=text)


def without_calls(exchanges: list[dict[str, Any]]) -> None:
    message(exchanges[0]).update(tool_calls=[], content="It is sunny.")
    choice(exchanges[0])["finish_reason"] = "stop"


def arguments(text: str) -> Spoil:
    def spoil(exchanges: list[dict[str, Any]]) -> None:
        message(exchanges[0])["tool_calls"][0]["function"]["arguments"] = text

    return spoil


def finish(reason: str | None, place: int = 0) -> Spoil:
    return lambda exchanges: choice(exchanges[place]).update(finish_reason=reason)


def deltas(exchange: dict[str, Any]) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in exchange["events"] if event.get("choices")]


def drop_streamed_calls(exchanges: list[dict[str, Any]]) -> None:
    for one in deltas(exchanges[1]):
        one["delta"].pop("tool_calls", None)


def drop_streamed_text(exchanges: list[dict[str, Any]]) -> None:
    first = next(one for one in deltas(exchanges[-1]) if one["delta"].get("content"))
    first["delta"]["content"] = ""


def break_streamed_text(exchanges: list[dict[str, Any]]) -> None:
    first = next(one for one in deltas(exchanges[-1]) if one["delta"].get("content"))
    first["delta"]["content"] = "\ufffd"


def second_role(exchanges: list[dict[str, Any]]) -> None:
    deltas(exchanges[-1])[2]["delta"]["role"] = "assistant"


def no_done(exchanges: list[dict[str, Any]]) -> None:
    exchanges[-1]["done"] = False


def usage(**counts: int) -> Spoil:
    return lambda exchanges: exchanges[0]["reply"]["usage"].update(counts)


def streamed_usage(exchanges: list[dict[str, Any]]) -> None:
    exchanges[1]["events"] = [event for event in exchanges[1]["events"] if not event.get("usage")]


def logprob(value: float) -> Spoil:
    return lambda exchanges: choice(exchanges[0])["logprobs"]["content"][0].update(logprob=value)


def completion_logprob(value: float) -> Spoil:
    def spoil(exchanges: list[dict[str, Any]]) -> None:
        choice(exchanges[0])["logprobs"]["token_logprobs"][0] = value

    return spoil


def one_choice(exchanges: list[dict[str, Any]]) -> None:
    del exchanges[0]["reply"]["choices"][1]


def taken(exchanges: list[dict[str, Any]]) -> None:
    exchanges[0]["status"] = 200


def same_ids(exchanges: list[dict[str, Any]]) -> None:
    for call in message(exchanges[0])["tool_calls"]:
        call["id"] = "call"


def refused(place: int) -> Spoil:
    def spoil(exchanges: list[dict[str, Any]]) -> None:
        del exchanges[place + 1 :]
        exchanges[place] = {"request": exchanges[place]["request"], "status": 400, "error": "validation error"}

    return spoil


def out_of_order(exchanges: list[dict[str, Any]]) -> None:
    events = exchanges[0]["events"]
    added = next(event for event in events if event["type"] == "response.output_item.added")
    events.remove(added)
    for number, event in enumerate(events):
        event["sequence_number"] = number


def reasoning(text: str, place: int = 0, content: str | None = None) -> Spoil:
    def spoil(exchanges: list[dict[str, Any]]) -> None:
        message(exchanges[place])["reasoning"] = text
        if content is not None:
            message(exchanges[place])["content"] = content

    return spoil


def responses_text(text: str, place: int = 0) -> Spoil:
    def spoil(exchanges: list[dict[str, Any]]) -> None:
        for item in exchanges[place]["reply"]["output"]:
            for part in item.get("content") or ():
                part["text"] = text

    return spoil


FAULTS: dict[str, list[Spoil]] = {
    "stop-string": [says("not what came before"), finish("length", 1)],
    "stop-streamed": [drop_streamed_text],
    "max-tokens": [usage(completion_tokens=6), finish("stop")],
    "n-two": [one_choice, finish(None)],
    "seed": [says("another text")],
    "greedy-twice": [says("another text")],
    "logprobs": [logprob(float("nan")), logprob(0.5), logprob(-50.0)],
    "logprobs-completions": [completion_logprob(float("inf")), completion_logprob(-50.0)],
    "usage": [usage(total_tokens=1), usage(completion_tokens=7)],
    "no-markup": [says("Paris<|im_end|>"), says("<think>hm</think>Paris"), says("Pa\ufffdris")],
    "json-schema": [says('{"unit": "kelvin", "sunny": true, "level": "high"}'), says("warm")],
    "choice": [says("gold"), says("")],
    "bad-request": [taken],
    "stream-equals-whole": [says("another text"), finish("abort")],
    "stream-form": [second_role, no_done, lambda e: e[0].update(bytes_after_done=3)],
    "stream-usage": [streamed_usage, usage(prompt_tokens=1)],
    "stream-eight": [no_done, second_role],
    "stream-unicode": [break_streamed_text, lambda e: e[1].update(bad_utf8=True)],
    "fact": [says("Lyon"), says("")],
    "fact-zh": [says("上海")],
    "product": [says("390")],
    "sum": [says("271")],
    "reverse": [says("tenapl")],
    "sort": [says("5, 12, 24, 36, 47, 83, 68, 91")],
    "lines": [says("apple\npear")],
    "json-free": [says('{"name": "Ada", "age": "36", "langs": ["en", "fr"]}')],
    "unicode-echo": [says("👩👩👧👦")],
    "memory": [says("MK-4821", 5)],
    "tool-auto": [without_calls, arguments('{"city": "Rome", "unit": "celsius"}'), says("<tool_call>x</tool_call>")],
    "tool-types": [arguments('{"guests": "4"}'), arguments("{")],
    "tool-parallel": [same_ids, lambda e: message(e[0])["tool_calls"].pop()],
    "tool-round-trip": [says("It is mild.", 1)],
    "tool-required": [without_calls, arguments('{"guests": 9}'), finish("stop")],
    "tool-named": [without_calls, finish("tool")],
    "tool-required-stream": [drop_streamed_calls, no_done],
    "tool-auto-stream": [drop_streamed_calls, says("text beside the call")],
    "tool-no-arguments": [drop_streamed_calls],
    "tool-cut-off": [finish("tool_calls", 1), lambda e: deltas(e[2])[-1].update(finish_reason="tool_calls")],
    "responses-text": [responses_text(""), lambda e: e[0]["reply"]["usage"].update(total_tokens=1)],
    "responses-stream": [out_of_order, lambda e: e[0]["events"].pop(), lambda e: e[0]["events"].pop(0)],
    "responses-turn-two": [refused(1)],
    "responses-tool-turn-two": [refused(0)],
    "responses-round-trip": [refused(1), responses_text("It is mild.", 1)],
    "reasoning-on": [says(""), says("<think>so</think>7")],
    "reasoning-off": [reasoning("still thinking", 1)],
    "reasoning-stream": [reasoning("something else")],
    "echo-c1": [says("one\ntwo")],
    "echo-c8": [says("one\ntwo")],
}


def test_no_check_is_without_a_fault() -> None:
    assert FAULTS.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", CHECKS)
def test_a_healthy_answer_passes(name: str, healthy: dict[str, Trial]) -> None:
    judgement = judge_trial(healthy[name])
    assert judgement.outcome == "PASS", judgement
    assert healthy[name]["class"] == "PASS"


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, spoils in FAULTS.items() for n in range(len(spoils))])
def test_a_spoiled_answer_fails(name: str, number: int, healthy: dict[str, Trial]) -> None:
    trial = copy.deepcopy(healthy[name])
    FAULTS[name][number](trial["exchanges"])
    judgement = judge_trial(trial)
    assert judgement.outcome == "FAIL", judgement
    assert judgement.detail


def cut(trial: Trial, **fields: Any) -> Trial:
    trial = copy.deepcopy(trial)
    message(trial["exchanges"][0]).update(fields)
    choice(trial["exchanges"][0])["finish_reason"] = "length"
    return trial


@pytest.mark.parametrize("name", ["fact", "reasoning-on"])
def test_an_answer_cut_off_inside_its_reasoning_is_undecided(name: str, healthy: dict[str, Trial]) -> None:
    judgement = judge_trial(cut(healthy[name], content=None, reasoning="still searching"))
    assert judgement.outcome == "BUDGET"
    assert "thinking off" in judgement.detail


def test_reasoning_alone_that_ends_by_itself_is_a_fault(healthy: dict[str, Trial]) -> None:
    trial = copy.deepcopy(healthy["reasoning-on"])
    message(trial["exchanges"][0])["content"] = None
    assert judge_trial(trial).outcome == "FAIL"


def test_a_model_that_does_not_think_makes_reasoning_not_applicable(healthy: dict[str, Trial]) -> None:
    for name in ("reasoning-on", "reasoning-off", "reasoning-stream"):
        trial = copy.deepcopy(healthy[name])
        for exchange in trial["exchanges"]:
            if "reply" in exchange:
                message(exchange)["reasoning"] = None
            else:
                for one in deltas(exchange):
                    one["delta"].pop("reasoning", None)
        assert judge_trial(trial).outcome == "NOT_APPLICABLE", name


def test_json_that_a_weak_model_fills_with_blanks_blames_no_engine(healthy: dict[str, Trial]) -> None:
    assert judge_trial(cut(healthy["json-schema"], content="{" + "\n\r " * 60)).outcome == "NOT_APPLICABLE"
    assert judge_trial(cut(healthy["json-schema"], content='{"unit": "cel')).outcome == "BUDGET"
    begun = '<tool_call>{"name": "book_table", "arguments": {'
    for name in ("tool-required", "tool-named", "tool-required-stream"):
        assert judge_trial(cut(healthy[name], content=begun + " " * 60, tool_calls=[])).outcome == "NOT_APPLICABLE"
        assert judge_trial(cut(healthy[name], content=begun, tool_calls=[])).outcome == "BUDGET"


def test_a_refusal_is_quoted(healthy: dict[str, Trial]) -> None:
    trial = copy.deepcopy(healthy["responses-turn-two"])
    refused(1)(trial["exchanges"])
    assert judge_trial(trial).detail == "request 2 to /v1/responses was refused: validation error"


def test_an_id_with_one_letter_more_or_less_is_wrong(healthy: dict[str, Trial]) -> None:
    for change in (lambda text: text.replace("\n", "x\n", 1), lambda text: text[1:]):
        trial = copy.deepcopy(healthy["echo-c1"])
        answer = message(trial["exchanges"][0])
        answer["content"] = change(answer["content"])
        judgement = judge_trial(trial)
        assert judgement.outcome == "FAIL"
        assert "1 of 8 ids" in judgement.detail


def test_calls_that_are_lost_in_both_ways_are_seen_by_the_finish_reason(healthy: dict[str, Trial]) -> None:
    trial = copy.deepcopy(healthy["tool-no-arguments"])
    message(trial["exchanges"][0])["tool_calls"] = []
    drop_streamed_calls(trial["exchanges"])
    assert "there is no call" in judge_trial(trial).detail


def test_tool_markup_in_the_content_names_the_parser(healthy: dict[str, Trial]) -> None:
    trial = copy.deepcopy(healthy["tool-auto"])
    message(trial["exchanges"][0]).update(content="<tool_call>get_weather<arg_key>city</arg_key>", tool_calls=[])
    assert "--tool-call-parser" in judge_trial(trial).detail


def test_an_answer_of_another_form_fails_instead_of_breaking_the_probe(healthy: dict[str, Trial]) -> None:
    for name, trial in healthy.items():
        if name == "bad-request":
            continue  # It reads the status alone.
        spoiled = copy.deepcopy(trial)
        for exchange in spoiled["exchanges"]:
            if "reply" in exchange:
                exchange["reply"] = {"choices": [None], "usage": None, "output": [7]}
            elif "events" in exchange:
                exchange["events"] = [None, {"choices": [{"delta": None}]}]
        assert judge_trial(spoiled).outcome in ("FAIL", "NOT_APPLICABLE"), name


def test_every_check_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs/probes.md").read_text()
    assert [name for name in CHECKS if f"`{name}`" not in text] == []
