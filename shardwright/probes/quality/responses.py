"""Checks of /v1/responses: one answer, its events in order, and a second turn made of the items that came back.

Nothing is stored on the server (`store: false`), so the second turn sends every item of the first again, as a client
of a stateless server must. A server can answer the first turn well and refuse its own items in the second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.probes.degen.text_faults import garbage
from shardwright.probes.quality.ask import Asker, Exchange
from shardwright.probes.quality.check import Check
from shardwright.probes.quality.prompts import FACT, FACT_ZH, TOOL_RESULT, TOOL_VALUE, TOOLS, WEATHER, calls_for
from shardwright.probes.quality.views import (
    Judgement,
    against_schema,
    difference,
    failed,
    first_fault,
    leaked,
    over_budget,
    passed,
    quote,
    text_of,
)

_FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]
_LAST_EVENTS = ("response.completed", "response.incomplete")
_NAME, _ARGUMENTS = calls_for(WEATHER)[0]
_CALL_ID = "call_0a1b2c3d4e5f6071"


def _user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def _items(exchange: Exchange) -> list[dict[str, Any]]:
    output = (exchange.get("reply") or {}).get("output")
    return [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []


def _said(items: Sequence[Mapping[str, Any]]) -> str:
    """All output text of these items."""
    parts = [p for item in items if item.get("type") == "message" for p in item.get("content") or ()]
    return "".join(text_of(part.get("text")) for part in parts if isinstance(part, dict))


def _calls(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [item for item in items if item.get("type") == "function_call"]


def _reply_fault(reply: Mapping[str, Any]) -> str:
    """What is wrong with the form of a whole response, or an empty string."""
    if reply.get("object") != "response" or not text_of(reply.get("id")):
        return "it is no response object with an id"
    if reply.get("status") not in ("completed", "incomplete"):
        return f"its status is {reply.get('status')!r}"
    if not isinstance(reply.get("output"), list) or not reply["output"]:
        return "it has no output items"
    untyped = [item for item in reply["output"] if not (isinstance(item, dict) and text_of(item.get("type")))]
    if untyped:
        return f"an output item has no type: {quote(json.dumps(untyped[0]))}"
    usage = reply.get("usage") or {}
    made, asked, total = (usage.get(f"{name}_tokens") for name in ("output", "input", "total"))
    if not (isinstance(made, int) and isinstance(asked, int) and made + asked == total):
        return f"usage does not add up: {asked} + {made} is not {total}"
    said = _said([item for item in reply["output"] if isinstance(item, dict)])
    return garbage(said) or leaked(said)


def _ask_text(asker: Asker) -> None:
    asker.respond(FACT)


def _judge_text(exchanges: Sequence[Exchange]) -> Judgement:
    reply = exchanges[0].get("reply") or {}
    fault = _reply_fault(reply)
    said = _said(_items(exchanges[0]))
    if not fault and not said.strip():
        if reply.get("status") == "incomplete":
            return over_budget()
        fault = "it says nothing"
    return failed(fault) if fault else passed(quote(said))


def _ask_stream(asker: Asker) -> None:
    asker.respond(FACT, stream=True)


def _judge_stream(exchanges: Sequence[Exchange]) -> Judgement:
    events = [event for event in exchanges[0]["events"] if isinstance(event, dict)]
    fault = _events_fault(events)
    if not fault and exchanges[0]["bad_utf8"]:
        fault = "an event is not UTF-8"
    return failed(fault) if fault else passed(f"{len(events)} events")


def _events_fault(events: Sequence[Mapping[str, Any]]) -> str:
    """How a stream of events breaks the order of the interface, or an empty string."""
    kinds = [text_of(event.get("type")) for event in events]
    if not kinds or kinds[0] != "response.created":
        return f"the first event is {kinds[0] if kinds else 'missing'}, not response.created"
    if kinds[-1] not in _LAST_EVENTS:
        return f"the last event is {kinds[-1]}"
    if sum(kind in _LAST_EVENTS or kind == "response.failed" for kind in kinds) != 1:
        return "it ends more than once"
    numbers = [event.get("sequence_number") for event in events]
    if numbers != list(range(numbers[0] if isinstance(numbers[0], int) else 0, len(numbers) + (numbers[0] or 0))):
        return f"sequence_number does not count up by one: {numbers[:8]}"
    return _order_fault(events) or _text_fault(events)


def _order_fault(events: Sequence[Mapping[str, Any]]) -> str:
    """Text of an item may come only between its `added` and its `done`."""
    opened: set[Any] = set()
    for event in events:
        kind, index = text_of(event.get("type")), event.get("output_index")
        if kind == "response.output_item.added":
            opened.add(index)
        elif kind == "response.output_item.done":
            if index not in opened:
                return f"item {index} is done before it was added"
            opened.discard(index)
        elif kind.endswith(".delta") and index not in opened:
            return f"{kind} comes for item {index}, which is not open"
    return f"items {sorted(map(str, opened))} are never done" if opened else ""


def _text_fault(events: Sequence[Mapping[str, Any]]) -> str:
    """The pieces of text together must be the text of the response that ends the stream."""
    pieces = "".join(text_of(e.get("delta")) for e in events if e.get("type") == "response.output_text.delta")
    response = events[-1].get("response")
    whole = _said(_items({"reply": response if isinstance(response, dict) else {}}))
    return "" if pieces == whole else f"the pieces and the final text: {difference(pieces, whole)}"


def _ask_two_turns(asker: Asker) -> None:
    first = [_user(FACT)]
    items = _items(asker.respond(first))
    asker.respond([*first, *items, _user(FACT_ZH)])


def _judge_last(exchanges: Sequence[Exchange]) -> Judgement:
    fault = first_fault(_reply_fault(exchange.get("reply") or {}) for exchange in exchanges)
    return failed(fault) if fault else passed(f"{len(exchanges)} turns")


def _ask_tool_turn(asker: Asker) -> None:
    """A second turn whose call is given here, since not every model makes one."""
    call = {"type": "function_call", "call_id": _CALL_ID, "name": _NAME, "arguments": json.dumps(dict(_ARGUMENTS))}
    result = {"type": "function_call_output", "call_id": _CALL_ID, "output": TOOL_RESULT}
    asker.respond([_user(WEATHER), call, result], tools=_FLAT_TOOLS, tool_choice="auto")


def _ask_round_trip(asker: Asker) -> None:
    first = [_user(WEATHER)]
    items = _items(asker.respond(first, tools=_FLAT_TOOLS, tool_choice="auto"))
    calls = _calls(items)
    if not calls:
        return
    results = [
        {"type": "function_call_output", "call_id": call.get("call_id"), "output": TOOL_RESULT} for call in calls
    ]
    asker.respond([*first, *items, *results], tools=_FLAT_TOOLS, tool_choice="auto")


def _judge_round_trip(exchanges: Sequence[Exchange]) -> Judgement:
    fault = first_fault(_reply_fault(exchange.get("reply") or {}) for exchange in exchanges)
    items = _items(exchanges[0])
    calls = _calls(items)
    if not fault and not calls:
        fault = f"no call; instead {quote(_said(items))}"
    fault = fault or first_fault(_call_fault(call) for call in calls)
    said = _said(_items(exchanges[-1]))
    if not fault and TOOL_VALUE not in said:
        fault = f"the tool said {TOOL_VALUE}, the answer says {quote(said)}"
    if fault and any((exchange.get("reply") or {}).get("status") == "incomplete" for exchange in exchanges):
        return over_budget()
    return failed(fault) if fault else passed(quote(said))


def _call_fault(call: Mapping[str, Any]) -> str:
    if call.get("name") != _NAME:
        return f"it calls {call.get('name')!r}, not {_NAME!r}"
    if not text_of(call.get("call_id")):
        return "the call has no call_id"
    try:
        arguments = json.loads(text_of(call.get("arguments")))
    except ValueError:
        return f"the arguments are not JSON: {quote(text_of(call.get('arguments')))}"
    schema = next(tool["parameters"] for tool in _FLAT_TOOLS if tool["name"] == _NAME)
    wanted = dict(_ARGUMENTS)
    return against_schema(arguments, schema) or ("" if arguments == wanted else f"wanted {wanted}, got {arguments}")


CHECKS = (
    Check(
        "responses-text",
        "responses",
        "engine",
        "a plain answer has no text, no usage that adds up, or another form than a response",
        _ask_text,
        _judge_text,
        "responses",
    ),
    Check(
        "responses-stream",
        "responses",
        "engine",
        "events are out of order or not numbered, or their pieces are not the final text",
        _ask_stream,
        _judge_stream,
        "responses",
    ),
    Check(
        "responses-turn-two",
        "responses",
        "engine",
        "the server refuses, or fails on, the items that it gave itself",
        _ask_two_turns,
        _judge_last,
        "responses",
    ),
    Check(
        "responses-tool-turn-two",
        "responses",
        "engine",
        "a call and its result are refused as input",
        _ask_tool_turn,
        _judge_last,
        "responses",
    ),
    Check(
        "responses-round-trip",
        "responses",
        "model",
        "the right call is not made, or the final answer does not hold what the tool said",
        _ask_round_trip,
        _judge_round_trip,
        "responses",
    ),
)
