"""Checks of the reasoning field: thinking switched on and off, whole and streamed.

The switch has a name of its own in each family of models and is passed over where unknown, so it is judged by effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.probes.quality.ask import THINKING_OFF, THINKING_ON, Asker, Exchange
from shardwright.probes.quality.check import Check
from shardwright.probes.quality.model import judge_answer
from shardwright.probes.quality.prompts import REASONING
from shardwright.probes.quality.stream import unequal
from shardwright.probes.quality.views import Judgement, View, failed, leaked, not_applicable, passed, view

_THOUGHT_TOKENS = 2048
_COMPARED_TOKENS = 96
_NO_THOUGHT = "no reasoning came with thinking switched on"


def judge_thought(answer: View) -> Judgement:
    """An answer with thinking on: both fields must be filled, and neither may leak into the other."""
    if leaked(answer.content):
        return failed(leaked(answer.content))
    if not answer.reasoning.strip():
        return not_applicable(_NO_THOUGHT)
    return judge_answer(answer, lambda _: "")


def _ask_on(asker: Asker) -> None:
    asker.chat(REASONING, thinking=THINKING_ON, max_tokens=max(_THOUGHT_TOKENS, asker.max_tokens))


def _judge_on(exchanges: Sequence[Exchange]) -> Judgement:
    return judge_thought(view(exchanges[0]))


def _ask_off(asker: Asker) -> None:
    """With thinking on first: where that brings no reasoning, its absence proves nothing."""
    for switch in (THINKING_ON, THINKING_OFF):
        asker.chat(REASONING, thinking=switch, max_tokens=max(_THOUGHT_TOKENS, asker.max_tokens))


def _judge_off(exchanges: Sequence[Exchange]) -> Judgement:
    on, off = view(exchanges[0]), view(exchanges[1])
    if not on.reasoning.strip():
        return not_applicable(_NO_THOUGHT)
    if off.reasoning.strip():
        return failed("reasoning comes although thinking is switched off")
    return judge_answer(off, lambda _: "")


def _ask_stream(asker: Asker) -> None:
    for stream in (False, True):
        asker.chat(REASONING, thinking=THINKING_ON, max_tokens=_COMPARED_TOKENS, stream=stream)


def _judge_stream(exchanges: Sequence[Exchange]) -> Judgement:
    whole, streamed = view(exchanges[0]), view(exchanges[1])
    if not whole.reasoning.strip() and not streamed.reasoning.strip():
        return not_applicable(_NO_THOUGHT)
    fault = unequal(exchanges[0], exchanges[1]) or leaked(streamed.content)
    return failed(fault) if fault else passed(f"{len(whole.reasoning)} characters of reasoning")


CHECKS = (
    Check(
        "reasoning-on",
        "reasoning",
        "engine",
        "there is reasoning but no answer, or markup of thinking stands in the content",
        _ask_on,
        _judge_on,
        "reasoning",
    ),
    Check(
        "reasoning-off",
        "reasoning",
        "engine",
        "reasoning comes although thinking is switched off",
        _ask_off,
        _judge_off,
        "reasoning",
    ),
    Check(
        "reasoning-stream",
        "reasoning",
        "engine",
        "reasoning or content differ between the streamed and the whole answer",
        _ask_stream,
        _judge_stream,
        "reasoning",
    ),
)
