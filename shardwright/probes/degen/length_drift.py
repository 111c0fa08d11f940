"""Are healthy answers longer than the control's? An early sign of loops; a warning, never a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.probes.stats import bootstrap_median_ratio, mann_whitney_greater

LEVEL = 0.001


@dataclass(frozen=True)
class Drift:
    """Median length over the control's, with its 95 % interval, and the P value of "tends to be longer"."""

    ratio: float
    low: float
    high: float
    p_value: float

    @property
    def warn(self) -> bool:
        return self.p_value < LEVEL

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "p_value": self.p_value,
            "warn": self.warn,
        }


def length_drift(tokens: Sequence[int], control: Sequence[int]) -> Drift | None:
    """Compare the lengths of healthy answers, in tokens; None where an arm has none.

    Neither arm is taken for the good one: swap them to ask the other way round.
    """
    a, b = ([count for count in arm if count > 0] for arm in (tokens, control))
    if not (a and b):
        return None
    ratio = bootstrap_median_ratio(a, b)
    return Drift(ratio.estimate, ratio.low, ratio.high, mann_whitney_greater(a, b))
