"""Checks of streamed answers, for any model: the same text as the whole answer, and a well-formed stream."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from shardwright.probes.degen.text_faults import garbage
from shardwright.probes.quality.ask import Asker, Exchange
from shardwright.probes.quality.check import Check
from shardwright.probes.quality.prompts import COUNT, UNICODE_ECHO
from shardwright.probes.quality.views import (
    NOTHING_SAID,
    Judgement,
    deltas,
    difference,
    failed,
    first_fault,
    not_applicable,
    part,
    passed,
    view,
)

_TOKENS = 48
_AT_ONCE = 8


def ask_pair(asker: Asker, prompt: str, max_tokens: int = _TOKENS) -> None:
    """The same greedy question, whole and streamed."""
    asker.chat(prompt, max_tokens=max_tokens)
    asker.chat(prompt, max_tokens=max_tokens, stream=True)


def unequal(whole: Exchange, streamed: Exchange) -> str:
    """How a streamed answer differs from the whole one, or an empty string."""
    a, b = view(whole), view(streamed)
    for name, x, y in (("content", a.content, b.content), ("reasoning", a.reasoning, b.reasoning)):
        if x != y:
            return f"{name} whole and streamed: {difference(x, y)}"
    if a.finish != b.finish:
        return f"finish_reason is {a.finish!r} whole and {b.finish!r} streamed"
    return ""


def malformed(exchange: Exchange) -> str:
    """What is wrong with the form of a chat stream, or an empty string."""
    choices = list(deltas(exchange))
    roles = [part(choice, "delta").get("role") for choice in choices]
    if [role for role in roles if role] != ["assistant"]:
        return f"the role comes {sum(map(bool, roles))} times"
    finishes = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    if len(finishes) != 1:
        return f"finish_reason comes {len(finishes)} times"
    after = choices[[bool(choice.get("finish_reason")) for choice in choices].index(True) + 1 :]
    if any(part(choice, "delta").get("content") for choice in after):
        return "text comes after the finish_reason"
    if not exchange["done"]:
        return "[DONE] never comes"
    if exchange["bytes_after_done"]:
        return f"{exchange['bytes_after_done']} bytes come after [DONE]"
    if exchange["bad_utf8"]:
        return "an event is not UTF-8"
    ids = {event.get("id") for event in exchange["events"] if isinstance(event, dict)}
    return f"the events carry {len(ids)} different ids" if len(ids) > 1 else ""


def _ask_count(asker: Asker) -> None:
    ask_pair(asker, COUNT)


def _judge_equal(exchanges: Sequence[Exchange]) -> Judgement:
    fault = unequal(exchanges[0], exchanges[1])
    said = view(exchanges[0]).reasoning + view(exchanges[0]).content
    if not fault and not said:
        return not_applicable(NOTHING_SAID)
    return failed(fault) if fault else passed(f"{len(said)} characters")


def _ask_stream(asker: Asker) -> None:
    asker.chat(COUNT, max_tokens=_TOKENS, stream=True)


def _judge_form(exchanges: Sequence[Exchange]) -> Judgement:
    fault = malformed(exchanges[0])
    return failed(fault) if fault else passed(f"{len(exchanges[0]['events'])} events")


def _judge_usage(exchanges: Sequence[Exchange]) -> Judgement:
    whole, streamed = view(exchanges[0]), view(exchanges[1])
    names = [f"{name}_tokens" for name in ("prompt", "completion", "total")]
    a, b = ([answer.usage.get(name) for name in names] for answer in (whole, streamed))
    if not all(isinstance(count, int) for count in b):
        return failed("a stream that was asked for usage gives none")
    if a != b:
        return failed(f"usage is {a} whole and {b} streamed")
    if streamed.token_ids and len(streamed.token_ids) != b[1]:
        return failed(f"usage counts {b[1]} tokens, the stream holds {len(streamed.token_ids)}")
    return passed(" + ".join(map(str, b[:2])))


def _ask_many(asker: Asker) -> None:
    """Eight streams at a time; kept in the order in which they were asked for."""
    askers = [Asker(asker.server, extensions=asker.extensions, max_tokens=asker.max_tokens) for _ in range(_AT_ONCE)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(_ask_stream, askers))
    for one in askers:
        asker.exchanges += one.exchanges
        asker.lost += one.lost


def _judge_many(exchanges: Sequence[Exchange]) -> Judgement:
    fault = first_fault(malformed(one) or garbage(view(one).content) for one in exchanges)
    return failed(fault) if fault else passed(f"{len(exchanges)} streams at a time")


def _ask_unicode(asker: Asker) -> None:
    ask_pair(asker, UNICODE_ECHO, max_tokens=128)


def _judge_unicode(exchanges: Sequence[Exchange]) -> Judgement:
    whole, streamed = exchanges
    if streamed["bad_utf8"]:
        return failed("an event is not UTF-8")
    broken = [garbage(view(one).content) for one in exchanges]
    if broken[1] and not broken[0]:
        return failed(f"the streamed answer {broken[1]}, the whole one does not")
    fault = unequal(whole, streamed)
    if not fault and not view(whole).content:
        return not_applicable(NOTHING_SAID)
    return failed(fault) if fault else passed(f"{len(view(whole).content)} characters")


CHECKS = (
    Check(
        "stream-equals-whole",
        "stream",
        "engine",
        "text, reasoning or finish reason differ between the streamed and the whole answer",
        _ask_count,
        _judge_equal,
    ),
    Check(
        "stream-form",
        "stream",
        "engine",
        "role or finish reason do not come exactly once, `[DONE]` is missing, something follows it, or the ids change",
        _ask_stream,
        _judge_form,
    ),
    Check(
        "stream-usage",
        "stream",
        "engine",
        "streamed usage is missing, or other than that of the whole answer",
        _ask_count,
        _judge_usage,
    ),
    Check("stream-eight", "stream", "engine", "as `stream-form`, for eight at a time", _ask_many, _judge_many),
    Check(
        "stream-unicode",
        "stream",
        "engine",
        "joined emoji, combining marks, ideographs or right-to-left text arrive otherwise than in the whole answer",
        _ask_unicode,
        _judge_unicode,
    ),
)
