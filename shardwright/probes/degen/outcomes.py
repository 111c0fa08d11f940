"""Name the outcome of one trial of the degeneration probe."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from shardwright.probes.degen.detector import Loop
from shardwright.probes.degen.text_faults import doubled_words, foreign_letters, garbage, markup, near_loop

Task = Literal["short", "agent", "long"]
"""short: the right answer is a sentence or two. agent: many turns with tool results, then an answer as short. long:
the answer may rightly run into max_tokens."""


class OutcomeClass(StrEnum):
    """What became of a trial. ERROR says nothing about the model; every other class but OK counts against it."""

    OK = "OK"
    LOOP_EXACT = "LOOP_EXACT"
    """The tail repeated exactly."""
    LOOP_NEAR = "LOOP_NEAR"
    """It never ended, and said the same few phrases with small changes."""
    RUNAWAY = "RUNAWAY"
    """It never ended by itself, although the prompt asks for little."""
    GARBAGE = "GARBAGE"
    """Characters that no text holds, one character over and over, doubled words, or letters of other scripts."""
    EMPTY = "EMPTY"
    """It ended without an answer."""
    WRONG = "WRONG"
    """A text, but without what the right answer must hold, or with marks that no answer holds."""
    ERROR = "ERROR"
    """No complete answer came."""

    @property
    def degenerate(self) -> bool:
        return self not in (OutcomeClass.OK, OutcomeClass.ERROR)


@dataclass(frozen=True)
class Outcome:
    """A class and, in a few words, the ground for it."""

    outcome: OutcomeClass
    detail: str


def judge(
    text: str,
    reasoning: str,
    finish_reason: str | None,
    loop: Loop | None,
    *,
    task: Task = "short",
    expect: Collection[str] = (),
    scripts: Collection[str] = (),
) -> Outcome:
    """Judge one answer. `loop` is what the detector found; `finish_reason` None means cut off by us.

    Of `expect` one must stand in the answer, whatever its case; `scripts` are those its letters may have. The order
    decides where several classes would fit: garbage, loop, still going, ended badly, empty, wrong.
    """
    output = reasoning + text
    ground = garbage(output)
    if loop is None:
        # A loop may well say a word twice; it is called what it is.
        ground = ground or foreign_letters(output, scripts) or doubled_words(output)
    if ground:
        return Outcome(OutcomeClass.GARBAGE, ground)
    if loop is not None:
        found = f"the last {loop.covered_tokens} tokens repeat with period {loop.period_tokens}"
        return Outcome(OutcomeClass.LOOP_EXACT, found)
    if finish_reason == "repetition":
        return Outcome(OutcomeClass.LOOP_EXACT, "the server ended it as a repetition")
    if finish_reason == "length":
        near = near_loop(output)
        if near:
            return Outcome(OutcomeClass.LOOP_NEAR, near)
        if task != "long":
            return Outcome(OutcomeClass.RUNAWAY, "still going at max_tokens")
    elif finish_reason != "stop":
        return Outcome(OutcomeClass.ERROR, f"finish_reason is {finish_reason!r}")
    if not text.strip():
        return Outcome(OutcomeClass.EMPTY, "reasoning but no answer" if reasoning.strip() else "no text")
    ground = markup(text) or _missing(text, expect)
    return Outcome(OutcomeClass.WRONG, ground) if ground else Outcome(OutcomeClass.OK, "")


def _missing(text: str, expect: Collection[str]) -> str:
    lower = text.lower()
    if not expect or any(word.lower() in lower for word in expect):
        return ""
    return f"holds no {' or '.join(repr(word) for word in expect)}: {text.strip()[:60]!r}"
