"""Draft acceptance against the floors under which a draft head does not work, with how sure so many drafts make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.probes.stats import clopper_pearson_upper

FIRST_DRAFT_FLOOR = 0.20
"""Acceptance of the first draft token on the best of our prompts; below it the draft head says nothing useful."""
COPY_FLOOR = 0.90
"""The same where text is copied: a working draft head foresees nearly all of it."""

_MOST_TIMES_MORE = 20
"""Where this many times the rounds would not decide either, the acceptance lies too near to its floor."""


@dataclass(frozen=True)
class BelowFloor:
    """An acceptance below its floor. `more_rounds` would make sure of it: 0 where it is sure, None where too many."""

    told: str
    more_rounds: int | None

    @property
    def open_point(self) -> str:
        """What is said of one that is not sure."""
        if self.more_rounds is None:
            return f"{self.told}, but too near to it to be sure"
        return f"{self.told}, too few to be sure: about {self.more_rounds} more rounds would decide"


def below_floors(rows: Sequence[Mapping[str, Any]]) -> list[BelowFloor]:
    """Rows of one stream whose acceptance is below its floor; sure by the one-sided 95 % bound of their drafts."""
    alone = [row for row in rows if row["concurrency"] == 1 and row.get("accept_pos0") is not None]
    if not alone:
        return []
    best = max(alone, key=lambda row: float(row["accept_pos0"]))
    if best["accept_pos0"] < FIRST_DRAFT_FLOOR:
        told = f"{_of_drafts(best)} at best, under the floor of {100 * FIRST_DRAFT_FLOOR:.0f} %"
        return [BelowFloor(f"{told}: the draft head is emitting noise", _more_rounds(best, FIRST_DRAFT_FLOOR))]
    return [
        BelowFloor(
            f"{_of_drafts(row)} where text is copied, under the floor of {100 * COPY_FLOOR:.0f} %",
            _more_rounds(row, COPY_FLOOR),
        )
        for row in alone
        if row["prompt"] == "copy" and row["sampler"] == "greedy" and row["accept_pos0"] < COPY_FLOOR
    ]


def _of_drafts(row: Mapping[str, Any]) -> str:
    return f"position-0 acceptance is {100 * row['accept_pos0']:.1f} % of {row['drafts']} drafts"


def _more_rounds(row: Mapping[str, Any], floor: float) -> int | None:
    rounds = max(int(row["rounds"]), 1)
    for wanted in range(rounds, _MOST_TIMES_MORE * rounds + 1):
        drafts = row["drafts"] * wanted // rounds
        if clopper_pearson_upper(round(row["accept_pos0"] * drafts), drafts) < floor:
            return wanted - rounds
    return None
