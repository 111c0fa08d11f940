"""Name the outcome of one needle trial from its stored record alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_GROUPED = re.compile(r"(?<![0-9])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+")
_LEAKED = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_NEAR_EDITS = 2


class NeedleClass(StrEnum):
    """What became of a needle. ERROR and EMPTY_BUDGET say nothing about the model."""

    EXACT = "EXACT"
    NEAR = "NEAR"
    """One or two digits off: numeric damage of the cache or of the indexer."""
    DISTRACTOR = "DISTRACTOR"
    """The code of another key: the wrong place was read."""
    WRONG = "WRONG"
    """A number that stands nowhere in the text."""
    ABSTAIN = "ABSTAIN"
    """No number."""
    EMPTY_BUDGET = "EMPTY_BUDGET"
    """max_tokens went into reasoning; the answer itself never began."""
    STALL = "STALL"
    """The server took the prompt, is still healthy, and sent nothing."""
    ERROR = "ERROR"
    """No complete answer came, or the prompt had not the length that was asked for."""

    @property
    def lost(self) -> bool:
        return self not in (NeedleClass.EXACT, NeedleClass.EMPTY_BUDGET, NeedleClass.ERROR)


@dataclass(frozen=True)
class NeedleOutcome:
    """A class and, in a few words, the ground for it."""

    outcome: NeedleClass
    detail: str


def judge_trial(record: Mapping[str, Any]) -> NeedleOutcome:
    """Judge a stored trial again: `expected` and `decoys` are its codes, `error` what failed on the way."""
    error = record.get("error")
    if isinstance(error, Mapping):
        kind = NeedleClass.STALL if error.get("stall") else NeedleClass.ERROR
        return NeedleOutcome(kind, str(error.get("detail", "")))
    target, counted = record.get("target_tokens"), record.get("prompt_tokens")
    if target is not None and counted != target:
        return NeedleOutcome(NeedleClass.ERROR, f"the server counted {counted} prompt tokens, not {target}")
    text = record.get("text", record.get("content"))
    return judge_answer(
        text if isinstance(text, str) else "",
        record.get("finish_reason"),
        str(record.get("expected", "")),
        [str(code) for code in record.get("decoys", ())],
    )


def judge_answer(text: str, finish_reason: str | None, expected: str, decoys: Sequence[str]) -> NeedleOutcome:
    """Judge one answer. Reasoning is no answer, not even where it leaks into the text between <think> marks."""
    answer = _LEAKED.sub("", text).strip()
    if finish_reason not in ("stop", "length"):
        return NeedleOutcome(NeedleClass.ERROR, f"finish_reason is {finish_reason!r}")
    if not answer:
        if finish_reason == "length":
            return NeedleOutcome(NeedleClass.EMPTY_BUDGET, "max_tokens went into reasoning; raise it")
        return NeedleOutcome(NeedleClass.ABSTAIN, "it ended without an answer")
    shortest = max(1, len(expected) - _NEAR_EDITS)
    found = [number.replace(",", "") for number in _GROUPED.findall(answer)]
    numbers = list(dict.fromkeys(number for number in found if len(number) >= shortest))
    if not numbers:
        return NeedleOutcome(NeedleClass.ABSTAIN, f"no number in {_quote(answer)}")
    if numbers == [expected]:
        return NeedleOutcome(NeedleClass.EXACT, "")
    others = [number for number in numbers if number in decoys]
    if others:
        return NeedleOutcome(NeedleClass.DISTRACTOR, f"{others[0]} belongs to another key, {expected} was asked for")
    wrong = next(number for number in numbers if number != expected)
    edits = edit_distance(wrong, expected)
    if edits <= _NEAR_EDITS:
        return NeedleOutcome(NeedleClass.NEAR, f"{wrong} is {edits} of {len(expected)} digits off {expected}")
    return NeedleOutcome(NeedleClass.WRONG, f"{wrong[:20]} stands nowhere in the text; it holds {expected}")


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and changes from `a` to `b` (Levenshtein). Long strings count by their length alone."""
    if abs(len(a) - len(b)) > _NEAR_EDITS:
        return abs(len(a) - len(b))
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            change = previous + (left != right)
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, change)
    return row[-1]


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
