"""Checks of tool calls that the engine must force: required, named, streamed, and cut off inside the call.

They are checks of the engine: the arguments are held to a schema of a few values each, so a weak model must do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwright.probes.quality.ask import Asker, Exchange
from shardwright.probes.quality.check import Check
from shardwright.probes.quality.prompts import BOOKING, BOOKING_TOOL
from shardwright.probes.quality.stream import malformed
from shardwright.probes.quality.tools import call_fault, judge_pair
from shardwright.probes.quality.views import (
    BLANKS,
    Judgement,
    View,
    endless_blanks,
    failed,
    not_applicable,
    over_budget,
    passed,
    quote,
    view,
)

_FORCED_TOKENS = 256
_FEWEST_TOKENS = 6
"""At which a call is cut off where the server does not say how long it is."""


def _forced(asker: Asker, choice: Any, *, stream: bool = False, max_tokens: int = _FORCED_TOKENS) -> None:
    asker.chat(BOOKING, tools=[BOOKING_TOOL], tool_choice=choice, stream=stream, max_tokens=max_tokens)


def _named() -> dict[str, Any]:
    return {"type": "function", "function": {"name": BOOKING_TOOL["function"]["name"]}}


def _cut_short(answer: View) -> Judgement:
    """An answer that ended at its limit, inside the call."""
    if any(endless_blanks(text) for text in (answer.content, *(call.arguments for call in answer.calls))):
        return not_applicable(BLANKS)
    return over_budget()


def _judge_forced(exchanges: Sequence[Exchange]) -> Judgement:
    """The call must be there and fit its schema. A named call may end as `stop`, as the interface has it."""
    answer = view(exchanges[0])
    fault = call_fault(answer.calls, answer.content)
    if not answer.calls or fault:
        if answer.finish == "length":
            return _cut_short(answer)
        return failed(fault or f"no call; instead {quote(answer.content)} (finish_reason {answer.finish!r})")
    named = isinstance(exchanges[0]["request"]["tool_choice"], dict)
    if answer.finish not in (("tool_calls", "stop") if named else ("tool_calls",)):
        return failed(f"finish_reason is {answer.finish!r}")
    if named and len(answer.calls) != 1:
        return failed(f"{len(answer.calls)} calls of the one named tool")
    return passed(f"{len(answer.calls)} calls, finish_reason {answer.finish!r}")


def _ask_required_pair(asker: Asker) -> None:
    _forced(asker, "required")
    _forced(asker, "required", stream=True)


def _judge_forced_pair(exchanges: Sequence[Exchange]) -> Judgement:
    whole, streamed = view(exchanges[0]), view(exchanges[1])
    for answer in (whole, streamed):
        if answer.finish == "length":
            return _cut_short(answer)
    if not whole.calls and not streamed.calls:
        return failed("no call, although one is required")
    judgement = judge_pair(whole, streamed)
    fault = malformed(exchanges[1]) if judgement.outcome == "PASS" else ""
    return failed(fault) if fault else judgement


def _ask_cut(asker: Asker) -> None:
    """A call, then the same with half of its tokens: shorter ones end before the call begins, and hide nothing."""
    _forced(asker, "required")
    tokens = view(asker.exchanges[-1]).usage.get("completion_tokens")
    half = max(_FEWEST_TOKENS, tokens // 2) if isinstance(tokens, int) else _FEWEST_TOKENS
    _forced(asker, "required", max_tokens=half)
    _forced(asker, "required", stream=True, max_tokens=half)


def _judge_cut(exchanges: Sequence[Exchange]) -> Judgement:
    tokens = exchanges[1]["request"]["max_tokens"]
    for exchange, way in zip(exchanges[1:], ("whole", "streamed"), strict=True):
        answer = view(exchange)
        if answer.finish != "length":
            return failed(
                f"{way}, cut off after {tokens} tokens, finish_reason is {answer.finish!r}: half a call is taken for "
                "a whole one"
            )
    return passed("finish_reason 'length' in both ways")


CHECKS = (
    Check(
        "tool-required",
        "tools",
        "engine",
        "`tool_choice: required` brings no call, breaks the schema, or ends otherwise than as `tool_calls`",
        lambda asker: _forced(asker, "required"),
        _judge_forced,
        "tools",
    ),
    Check(
        "tool-named",
        "tools",
        "engine",
        "a named tool is not called, not once, or breaks its schema",
        lambda asker: _forced(asker, _named()),
        _judge_forced,
        "tools",
    ),
    Check(
        "tool-required-stream",
        "tools",
        "engine",
        "a required call differs between stream and whole answer, or the stream is malformed",
        _ask_required_pair,
        _judge_forced_pair,
        "tools",
    ),
    Check(
        "tool-cut-off",
        "tools",
        "engine",
        "a call that is cut off by `max_tokens` does not end as `length`",
        _ask_cut,
        _judge_cut,
        "tools",
    ),
)
