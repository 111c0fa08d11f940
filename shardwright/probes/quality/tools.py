"""Checks of tool calls that the model chooses freely: one, typed, parallel, streamed, without arguments, answered.

Whether a model calls a tool of its own accord is a check of the model; that a call comes through, one of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.probes.quality.ask import Asker, Exchange, user
from shardwright.probes.quality.check import Check
from shardwright.probes.quality.prompts import (
    BOOKING,
    TIME,
    TIME_TOOL,
    TOOL_RESULT,
    TOOL_VALUE,
    TOOLS,
    WEATHER,
    WEATHER_TWICE,
    calls_for,
)
from shardwright.probes.quality.stream import unequal
from shardwright.probes.quality.views import (
    NOTHING_SAID,
    Call,
    Judgement,
    View,
    against_schema,
    difference,
    failed,
    first_fault,
    leaked,
    not_applicable,
    over_budget,
    passed,
    quote,
    view,
)

_SCHEMAS: Mapping[str, Mapping[str, Any]] = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def call_fault(calls: Sequence[Call], content: str) -> str:
    """What is wrong with calls and the text beside them, whatever was asked; an empty string where nothing is."""
    markup = leaked(content)
    if markup:
        return markup
    for call in calls:
        if call.name not in _SCHEMAS:
            return f"it calls {call.name!r}, which was not offered"
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            return f"the arguments of {call.name} are not JSON: {quote(call.arguments)}"
        broken = against_schema(arguments, _SCHEMAS[call.name], "the arguments")
        if broken:
            return broken
        if not call.id:
            return f"the call of {call.name} has no id"
    ids = [call.id for call in calls]
    return "two calls have the same id" if len(set(ids)) < len(ids) else ""


def judge_pair(whole: View, streamed: View) -> Judgement:
    """Calls of the same greedy request, whole and streamed: names and arguments must be equal.

    A stream that ends as `tool_calls` without any call has lost it, whatever the whole answer says.
    """
    fault = first_fault((call_fault(whole.calls, whole.content), call_fault(streamed.calls, streamed.content)))
    if fault:
        return failed(fault)
    a, b = ([(call.name, json.loads(call.arguments)) for call in answer.calls] for answer in (whole, streamed))
    if len(a) != len(b):
        return failed(f"{len(a)} calls whole and {len(b)} streamed (finish_reason {streamed.finish!r})")
    if a != b:
        return failed(f"calls whole and streamed: {difference(json.dumps(a), json.dumps(b))}")
    if not a and "tool_calls" in (whole.finish, streamed.finish):
        return failed("finish_reason is 'tool_calls', but there is no call")
    return passed(f"{len(a)} calls, the same whole and streamed")


def _judge_wanted(prompt: str, answer: View) -> Judgement:
    """The calls that the right answer makes, in any order."""
    fault = call_fault(answer.calls, answer.content)
    if not fault and not answer.calls:
        fault = f"no call; instead {quote(answer.content)} (finish_reason {answer.finish!r})"
    if not fault:
        wanted = sorted(json.dumps([name, arguments], sort_keys=True) for name, arguments in calls_for(prompt))
        got = sorted(json.dumps([c.name, json.loads(c.arguments)], sort_keys=True) for c in answer.calls)
        fault = "" if got == wanted else f"wanted {wanted}, got {got}"
    if fault and answer.finish == "length":
        return over_budget()
    if not fault and answer.finish != "tool_calls":
        fault = f"finish_reason is {answer.finish!r}, not 'tool_calls'"
    return failed(fault) if fault else passed(f"{len(answer.calls)} calls")


def ask_auto(asker: Asker) -> None:
    """The tool is offered, the model decides."""
    asker.chat(WEATHER, tools=list(TOOLS), tool_choice="auto")


def judge_auto(exchanges: Sequence[Exchange]) -> Judgement:
    return _judge_wanted(WEATHER, view(exchanges[0]))


def _ask_parallel(asker: Asker) -> None:
    asker.chat(WEATHER_TWICE, tools=list(TOOLS), tool_choice="auto", parallel_tool_calls=True)


def _judge_parallel(exchanges: Sequence[Exchange]) -> Judgement:
    return _judge_wanted(WEATHER_TWICE, view(exchanges[0]))


def _ask_types(asker: Asker) -> None:
    asker.chat(BOOKING, tools=list(TOOLS), tool_choice="auto")


def _judge_types(exchanges: Sequence[Exchange]) -> Judgement:
    return _judge_wanted(BOOKING, view(exchanges[0]))


def _ask_round_trip(asker: Asker) -> None:
    answer = view(asker.chat(WEATHER, tools=list(TOOLS), tool_choice="auto"))
    if not answer.calls:
        return
    results = [{"role": "tool", "tool_call_id": call.id, "content": TOOL_RESULT} for call in answer.calls]
    asker.chat([*user(WEATHER), _as_message(answer), *results], tools=list(TOOLS), tool_choice="auto")


def _as_message(answer: View) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    return {"role": "assistant", "content": answer.content, "tool_calls": calls}


def _judge_round_trip(exchanges: Sequence[Exchange]) -> Judgement:
    if len(exchanges) < 2:
        return judge_auto(exchanges)
    final = view(exchanges[1])
    fault = leaked(final.content)
    if not fault and TOOL_VALUE not in final.content:
        fault = f"the tool said {TOOL_VALUE}, the answer says {quote(final.content)}"
    if fault and final.finish == "length":
        return over_budget()
    return failed(fault) if fault else passed(quote(final.content))


def _ask_auto_pair(asker: Asker) -> None:
    for stream in (False, True):
        asker.chat(WEATHER, tools=list(TOOLS), tool_choice="auto", stream=stream)


def _cut_in_a_call(answers: Sequence[View]) -> bool:
    return any(answer.finish == "length" and answer.calls for answer in answers)


def _judge_auto_pair(exchanges: Sequence[Exchange]) -> Judgement:
    answers = [view(exchange) for exchange in exchanges]
    if _cut_in_a_call(answers):
        return over_budget()
    if not any(answer.calls or answer.content or answer.reasoning for answer in answers):
        return not_applicable(NOTHING_SAID)
    judgement = judge_pair(*answers)
    fault = unequal(exchanges[0], exchanges[1]) if judgement.outcome == "PASS" else ""
    return failed(fault) if fault else judgement


def _ask_zero(asker: Asker) -> None:
    for stream in (False, True):
        asker.chat(TIME, tools=[TIME_TOOL], tool_choice="auto", stream=stream)


def _judge_zero(exchanges: Sequence[Exchange]) -> Judgement:
    whole, streamed = view(exchanges[0]), view(exchanges[1])
    if _cut_in_a_call((whole, streamed)):
        return over_budget()
    judgement = judge_pair(whole, streamed)
    if judgement.outcome == "PASS" and not whole.calls:
        return not_applicable("the model called nothing, so nothing can get lost")
    return judgement


CHECKS = (
    Check("tool-auto", "tools", "model", "the one right call is not made", ask_auto, judge_auto, "tools"),
    Check(
        "tool-types", "tools", "model", "numbers, enums or nested lists are wrong", _ask_types, _judge_types, "tools"
    ),
    Check("tool-parallel", "tools", "model", "two calls are not both made", _ask_parallel, _judge_parallel, "tools"),
    Check(
        "tool-round-trip",
        "tools",
        "model",
        "the answer does not hold what the tool said",
        _ask_round_trip,
        _judge_round_trip,
        "tools",
    ),
    Check(
        "tool-auto-stream",
        "tools",
        "engine",
        "with tools offered, calls, text or finish reason differ between stream and whole answer",
        _ask_auto_pair,
        _judge_auto_pair,
        "tools",
    ),
    Check(
        "tool-no-arguments",
        "tools",
        "engine",
        "a call without arguments gets lost in the stream: it ends as `tool_calls` with no call",
        _ask_zero,
        _judge_zero,
        "tools",
    ),
)
