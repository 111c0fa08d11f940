"""Name the outcome of one trial on a bounded prompt: one whose right answer is short and then ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shardwright.probes.detector import Loop

_TAIL_CHARS = 200
_FEWEST_CHARS = 40
_ONE_CHAR_SHARE = 0.6
_PLAIN_CONTROLS = "\t\n\r"


class OutcomeClass(StrEnum):
    """What became of a trial. ERROR says nothing about the model; every other class but OK counts against it."""

    OK = "OK"
    LOOP_EXACT = "LOOP_EXACT"
    """The tail repeated exactly."""
    RUNAWAY = "RUNAWAY"
    """It never ended by itself, although the prompt asks for little."""
    GARBAGE = "GARBAGE"
    """Characters that no text holds, or one character over and over."""
    EMPTY = "EMPTY"
    """It ended without an answer."""
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


def judge(text: str, reasoning: str, finish_reason: str | None, loop: Loop | None) -> Outcome:
    """Judge one answer. `loop` is what the detector found while it streamed; `finish_reason` None means cut off by us.

    The order decides where several would fit: garbage, loop, runaway, empty.
    """
    output = reasoning + text
    garbage = _garbage(output)
    if garbage:
        return Outcome(OutcomeClass.GARBAGE, garbage)
    if loop is not None:
        found = f"the last {loop.covered_tokens} tokens repeat with period {loop.period_tokens}"
        return Outcome(OutcomeClass.LOOP_EXACT, found)
    if finish_reason == "repetition":
        return Outcome(OutcomeClass.LOOP_EXACT, "the server ended it as a repetition")
    if finish_reason == "length":
        return Outcome(OutcomeClass.RUNAWAY, "still going at max_tokens")
    if finish_reason != "stop":
        return Outcome(OutcomeClass.ERROR, f"finish_reason is {finish_reason!r}")
    if not text.strip():
        return Outcome(OutcomeClass.EMPTY, "reasoning but no answer" if reasoning.strip() else "no text")
    return Outcome(OutcomeClass.OK, "")


def _garbage(text: str) -> str:
    """Why `text` is no text, or an empty string."""
    for char in text:
        if char == "\ufffd":
            return "holds U+FFFD, the mark of broken bytes"
        if (char < " " and char not in _PLAIN_CONTROLS) or "\ud800" <= char <= "\udfff":
            return f"holds U+{ord(char):04X}, which no text holds"
    tail = text[-_TAIL_CHARS:]
    if len(tail) >= _FEWEST_CHARS:
        most = max(set(tail), key=tail.count)
        if tail.count(most) >= _ONE_CHAR_SHARE * len(tail):
            return f"{most!r} makes up {tail.count(most)} of its last {len(tail)} characters"
    return ""
