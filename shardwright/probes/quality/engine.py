"""Checks of the engine that hold for any model: sampling fields, logprobs, usage, structured output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwright.probes.client import GREEDY
from shardwright.probes.degen.text_faults import garbage
from shardwright.probes.quality.ask import SAMPLED, Asker, Exchange, RefusedError
from shardwright.probes.quality.check import Check
from shardwright.probes.quality.prompts import COUNT, FACT, JSON_SCHEMA, JSON_SCHEMA_PROMPT
from shardwright.probes.quality.views import (
    BLANKS,
    NOTHING_SAID,
    Judgement,
    against_schema,
    difference,
    endless_blanks,
    failed,
    first_fault,
    leaked,
    not_applicable,
    over_budget,
    parsed,
    passed,
    quote,
    text_of,
    view,
    views,
)

_CUT_TOKENS = 5
_SHORT_TOKENS = 48
_SHORTEST_TO_STOP = 6
_STOP_CHARS = 3
_TOP = 5
_ROUNDING = 1e-3
_SCHEMA_TOKENS = 200
_CHOICES = ("copper", "silver")


def _ask_stop(asker: Asker, *, stream: bool) -> None:
    whole = view(asker.chat(COUNT, max_tokens=_SHORT_TOKENS)).content
    stop = _stop_within(whole)
    if stop:
        asker.chat(COUNT, max_tokens=_SHORT_TOKENS, stream=stream, stop=[stop])


def _stop_within(text: str) -> str:
    """A few characters out of the middle of an answer: a stop string that is sure to come up."""
    if len(text.strip()) < _SHORTEST_TO_STOP:
        return ""
    middle = len(text) // 2
    return text[middle : middle + _STOP_CHARS]


def _judge_stop(exchanges: Sequence[Exchange]) -> Judgement:
    if len(exchanges) < 2:
        return not_applicable("the answer is too short to be stopped inside")
    whole, cut = view(exchanges[0]), view(exchanges[1])
    stop = exchanges[1]["request"]["stop"][0]
    wanted = whole.content[: whole.content.index(stop)]
    if stop in cut.content:
        return failed(f"the stop string {stop!r} stands in {quote(cut.content)}")
    if cut.content != wanted:
        return failed(f"what comes before {stop!r}: {difference(wanted, cut.content)}")
    if cut.finish != "stop":
        return failed(f"finish_reason is {cut.finish!r}, not 'stop'")
    return passed(f"{len(wanted)} characters, then {stop!r}")


def _ask_max_tokens(asker: Asker) -> None:
    longer: Mapping[str, Any] = {"ignore_eos": True, "min_tokens": _CUT_TOKENS} if asker.extensions else {}
    asker.chat(COUNT, max_tokens=_CUT_TOKENS, **longer)


def _judge_max_tokens(exchanges: Sequence[Exchange]) -> Judgement:
    answer = view(exchanges[0])
    made = answer.usage.get("completion_tokens")
    if made == _CUT_TOKENS and answer.finish == "length":
        return passed(f"{made} tokens, finish_reason 'length'")
    if isinstance(made, int) and made < _CUT_TOKENS and answer.finish == "stop":
        return not_applicable(f"the answer ended by itself after {made} tokens")
    return failed(f"max_tokens {_CUT_TOKENS} gave {made} tokens and finish_reason {answer.finish!r}")


def _ask_two(asker: Asker) -> None:
    asker.chat(COUNT, max_tokens=_SHORT_TOKENS, sampler=SAMPLED, n=2)


def _judge_two(exchanges: Sequence[Exchange]) -> Judgement:
    choices = views(exchanges[0])
    indices = sorted(choice.get("index", -1) for choice in (exchanges[0].get("reply") or {}).get("choices") or ())
    if indices != [0, 1]:
        return failed(f"n=2 gave choices {indices}")
    unfinished = [choice.finish for choice in choices if choice.finish not in ("stop", "length")]
    return failed(f"finish_reason is {unfinished[0]!r}") if unfinished else passed("two choices, both finished")


def _ask_seed(asker: Asker) -> None:
    for _ in range(2):
        asker.chat(COUNT, max_tokens=_SHORT_TOKENS, sampler=replace(SAMPLED, temperature=1.0, seed=1234))


def _ask_twice(asker: Asker) -> None:
    for _ in range(2):
        asker.chat(COUNT, max_tokens=_SHORT_TOKENS, sampler=GREEDY)


def _judge_same(exchanges: Sequence[Exchange]) -> Judgement:
    a, b = (view(exchange).reasoning + view(exchange).content for exchange in exchanges)
    if not a and not b:
        return not_applicable(NOTHING_SAID)
    return passed(f"{len(a)} characters, twice the same") if a == b else failed(difference(a, b))


def _ask_logprobs(asker: Asker) -> None:
    asker.chat(COUNT, max_tokens=_SHORT_TOKENS, logprobs=True, top_logprobs=_TOP)


def _judge_logprobs(exchanges: Sequence[Exchange]) -> Judgement:
    choice = ((exchanges[0].get("reply") or {}).get("choices") or [{}])[0]
    tokens = (choice.get("logprobs") or {}).get("content") or []
    if not tokens:
        return failed("the answer has no logprobs")
    fault = first_fault(
        _logprob_fault(t.get("token"), t.get("logprob"), {e["token"]: e["logprob"] for e in t.get("top_logprobs", ())})
        for t in tokens
    )
    return failed(fault) if fault else passed(f"{len(tokens)} tokens")


def _ask_completion_logprobs(asker: Asker) -> None:
    asker.completion("1, 2, 3, 4,", max_tokens=16, logprobs=_TOP)


def _judge_completion_logprobs(exchanges: Sequence[Exchange]) -> Judgement:
    choice = ((exchanges[0].get("reply") or {}).get("choices") or [{}])[0]
    logprobs = choice.get("logprobs") or {}
    tokens, values = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
    tops = logprobs.get("top_logprobs") or []
    if not tokens or not len(tokens) == len(values) == len(tops):
        return failed(f"{len(tokens)} tokens, {len(values)} logprobs and {len(tops)} lists of the most likely")
    fault = first_fault(_logprob_fault(*row) for row in zip(tokens, values, tops, strict=True))
    return failed(fault) if fault else passed(f"{len(tokens)} tokens")


def _logprob_fault(token: Any, value: Any, top: Mapping[str, Any]) -> str:
    """What is wrong with one greedy token: its logprob, and those of the most likely tokens by their text.

    Different tokens may have the same text, so the sum is over what the mapping still tells apart.
    """
    numbers = [value, *top.values()]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return f"the logprob of {token!r} is no number: {numbers}"
    if max(numbers) > _ROUNDING:
        return f"a logprob beside {token!r} is {max(numbers):g}, above 0"
    mass = sum(math.exp(number) for number in top.values())
    if mass > 1 + _ROUNDING:
        return f"the probabilities beside {token!r} add up to {mass:.4f}"
    if top and token not in top:
        return f"{token!r} is not among the {len(top)} most likely"
    if top and value < max(top.values()) - _ROUNDING:
        return f"{token!r} was chosen greedily, but is not the most likely"
    return ""


def _ask_plain(asker: Asker) -> None:
    asker.chat(COUNT, max_tokens=_SHORT_TOKENS)


def _judge_usage(exchanges: Sequence[Exchange]) -> Judgement:
    answer = view(exchanges[0])
    prompt, made, total = (answer.usage.get(f"{name}_tokens") for name in ("prompt", "completion", "total"))
    if not (isinstance(prompt, int) and isinstance(made, int) and isinstance(total, int)):
        return failed(f"usage is incomplete: {dict(answer.usage)}")
    if prompt + made != total:
        return failed(f"usage does not add up: {prompt} + {made} is not {total}")
    if answer.token_ids and len(answer.token_ids) != made:
        return failed(f"usage counts {made} tokens, the answer holds {len(answer.token_ids)}")
    return passed(f"{prompt} + {made} = {total}")


def _ask_clean(asker: Asker) -> None:
    for question in (FACT, COUNT):
        asker.chat(question, max_tokens=_SHORT_TOKENS)


def _judge_clean(exchanges: Sequence[Exchange]) -> Judgement:
    contents = [view(exchange).content for exchange in exchanges]
    if not any(contents):
        return not_applicable(NOTHING_SAID)
    fault = first_fault(garbage(content) or leaked(content) for content in contents)
    return failed(fault) if fault else passed()


def _ask_schema(asker: Asker) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "day", "strict": True, "schema": JSON_SCHEMA}}
    asker.chat(JSON_SCHEMA_PROMPT, max_tokens=_SCHEMA_TOKENS, response_format=form)


def _judge_schema(exchanges: Sequence[Exchange]) -> Judgement:
    answer = view(exchanges[0])
    try:
        value = parsed(answer.content)
    except ValueError:
        if answer.finish == "length" and endless_blanks(answer.content):
            return not_applicable(BLANKS)
        if answer.finish == "length":
            return over_budget()
        return failed(f"what was held to a schema is not JSON: {quote(answer.content)}")
    fault = against_schema(value, JSON_SCHEMA)
    return failed(fault) if fault else passed(quote(answer.content))


def _ask_choice(asker: Asker) -> None:
    held: Mapping[str, Any] = {"structured_outputs": {"choice": list(_CHOICES)}} if asker.extensions else {}
    asker.chat(FACT, max_tokens=_SHORT_TOKENS, **held)


def _judge_choice(exchanges: Sequence[Exchange]) -> Judgement:
    if "structured_outputs" not in exchanges[0]["request"]:
        return not_applicable("the server takes no fields outside the OpenAI interface")
    content = view(exchanges[0]).content
    if content not in _CHOICES:
        return failed(f"held to {' or '.join(_CHOICES)}, it says {quote(content)}")
    return passed(quote(content))


def _ask_bad(asker: Asker) -> None:
    try:
        asker.chat(FACT, max_tokens=-1)
    except RefusedError:
        asker.chat(FACT, max_tokens=_CUT_TOKENS)


def _judge_bad(exchanges: Sequence[Exchange]) -> Judgement:
    if exchanges[0]["status"] == 200:
        return failed("max_tokens -1 was taken")
    if exchanges[0]["status"] not in (400, 422):
        return failed(f"max_tokens -1 gave HTTP {exchanges[0]['status']}")
    if not text_of(exchanges[0].get("error")):
        return failed("the refusal says nothing")
    return passed(f"HTTP {exchanges[0]['status']}, and the next request is answered")


CHECKS = (
    Check(
        "stop-string",
        "sampling",
        "engine",
        "the stop string is in the answer, or the text before it is not the same",
        lambda asker: _ask_stop(asker, stream=False),
        _judge_stop,
    ),
    Check(
        "stop-streamed",
        "stream",
        "engine",
        "as `stop-string`, for a streamed answer",
        lambda asker: _ask_stop(asker, stream=True),
        _judge_stop,
    ),
    Check(
        "max-tokens",
        "sampling",
        "engine",
        "`max_tokens: 5` gives other than 5 tokens, or does not end as `length`",
        _ask_max_tokens,
        _judge_max_tokens,
    ),
    Check("n-two", "sampling", "engine", "`n: 2` does not give choices 0 and 1, both finished", _ask_two, _judge_two),
    Check("seed", "sampling", "engine", "the same seed at temperature 1 gives two answers", _ask_seed, _judge_same),
    Check("greedy-twice", "sampling", "engine", "the same greedy request gives two answers", _ask_twice, _judge_same),
    Check(
        "logprobs",
        "sampling",
        "engine",
        "a logprob is no number or above 0, the five most likely weigh more than 1, or a greedy token is not the first",
        _ask_logprobs,
        _judge_logprobs,
    ),
    Check(
        "logprobs-completions",
        "sampling",
        "engine",
        "as `logprobs`, through `/v1/completions`",
        _ask_completion_logprobs,
        _judge_completion_logprobs,
    ),
    Check("usage", "text", "engine", "usage does not add up, or counts other than the ids", _ask_plain, _judge_usage),
    Check(
        "no-markup",
        "text",
        "engine",
        "the content is one character over and over, or holds U+FFFD, a special token, or markup of tools or thinking",
        _ask_clean,
        _judge_clean,
    ),
    Check(
        "json-schema",
        "text",
        "engine",
        "an answer held to a schema by `response_format` breaks it",
        _ask_schema,
        _judge_schema,
    ),
    Check(
        "choice",
        "text",
        "engine",
        "an answer held to one of two words (`structured_outputs`) is neither",
        _ask_choice,
        _judge_choice,
    ),
    Check(
        "bad-request",
        "text",
        "engine",
        "`max_tokens: -1` is taken, gives other than 400 or 422, or the next request fails",
        _ask_bad,
        _judge_bad,
    ),
)
