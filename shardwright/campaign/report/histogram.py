"""Histograms over one logarithmic axis, as SVG without text: it stretches to any width, the words stand beside it.

A logarithm, because a step takes 17 ms, and 400 where it waits for a prefill: on an even axis one of them is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwright.campaign.report.markup import Markup, html, tag

BINS = 64
_FLOOR = 8
"""What is shorter than the median by more than this is drawn at the left end; two events at once are no time at all."""
_LEAST_SPAN = 1.2
"""So that times which are all but equal look it."""
_ROOM = 0.03
_HALF = 36
"""Height of one arm in the picture's own units."""
_LEAST_BAR = 1.5
"""So that a single value among thousands is seen."""
_MOST_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, both above 0, in the unit of the values."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1; what lies outside is drawn at the end."""
        inside = min(max(value, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Round numbers within the axis, as many as a phone has room for."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1.0, 2.0, 5.0), (1.0,)):
            found = [step * 10.0**decade for decade in decades for step in steps]
            inside = [tick for tick in found if self.low <= tick <= self.high]
            if len(inside) <= _MOST_TICKS:
                break
        return inside[:: math.ceil(len(inside) / _MOST_TICKS)] if len(inside) > 2 else self._even_ticks()

    def _even_ticks(self) -> list[float]:
        """For an axis that spans less than a few of the round numbers: the widest step that gives three."""
        size = 10.0 ** math.floor(math.log10(self.high - self.low))
        for step in (5 * size, 2 * size, size, size / 2, size / 5):
            first, last = math.ceil(self.low / step), math.floor(self.high / step)
            if last - first >= 2:
                break
        return [step * place for place in range(first, last + 1)]


def axis_over(values: Iterable[float]) -> Axis | None:
    """An axis that shows all these values, with a little room at both ends; None where there is none above 0."""
    ordered = sorted(value for value in values if value > 0)
    if not ordered:
        return None
    low, high = max(ordered[0], ordered[len(ordered) // 2] / _FLOOR), ordered[-1]
    room = max((high / low) ** _ROOM, (_LEAST_SPAN * low / high) ** 0.5)
    return Axis(low / room, high * room)


def shares(values: Sequence[float], axis: Axis) -> list[float]:
    """What share of the values falls into each of the bins; they are equally wide on the axis."""
    counts = [0] * BINS
    for value in values:
        counts[min(int(axis.place(value) * BINS), BINS - 1)] += 1
    return [count / len(values) for count in counts]


@dataclass(frozen=True)
class Arm:
    """One arm of a picture: the share in each bin, and where its quantiles stand on the axis, 0 to 1."""

    shares: Sequence[float]
    quantiles: Sequence[float]


def picture(arms: Sequence[Arm | None], axis: Axis, told: str) -> Markup:
    """One arm upwards, a second one downwards from the same line; None for an arm that was not measured.

    The highest bar of both fills the height. `told` says in words what is seen, for those who do not see it.
    """
    height = _HALF * len(arms)
    tallest = max((share for arm in arms if arm for share in arm.shares), default=1.0)
    grid = "".join(f"M{100 * axis.place(tick):.2f} 0V{height}" for tick in axis.ticks())
    parts: list[object] = [tag("title", told), tag("path", d=grid, class_="grid")]
    for place, arm in enumerate(arms):
        if arm is None:
            continue
        upwards = place == 0
        bars = "".join(_bar(bin_, share / tallest, upwards) for bin_, share in enumerate(arm.shares) if share)
        parts.append(tag("path", d=bars, class_="control" if upwards else "candidate"))
        top = 0 if upwards else _HALF
        parts += [
            tag("path", d=f"M{100 * at:.2f} {top}v{_HALF}", class_=f"at {name}")
            for name, at in zip(("p50", "p95", "p99"), arm.quantiles, strict=True)
        ]
    parts.append(tag("path", d=f"M0 {_HALF}H100", class_="base"))
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 100 {height}",
        preserveAspectRatio="none",
        role="img",
        aria_label=told,
        class_="spread two" if len(arms) > 1 else "spread",
    )


def scale(axis: Axis) -> Markup:
    """The numbers below the pictures that share an axis."""
    marks = [tag("span", html(f"{tick:,.6g}"), style=f"left:{100 * axis.place(tick):.2f}%") for tick in axis.ticks()]
    return tag("div", *marks, class_="scale", aria_hidden="true")


def _bar(bin_: int, share: float, upwards: bool) -> str:
    """One bar as a piece of a path, standing on the middle line or hanging from it."""
    width = 100 / BINS
    long = max(_LEAST_BAR, share * (_HALF - 1))
    return f"M{bin_ * width:.2f} {_HALF}v{-long if upwards else long:.2f}h{0.9 * width:.2f}V{_HALF}z"
