"""Two stored speed runs against each other: a verdict for each metric, from its interval and not from its value.

`step_ms` does not depend on what is written, so it judges a topology; `accept_len` explains tok/s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.speed.report import Row, rows_of

__all__ = ["MetricVerdict", "compare_speed", "rows_of"]

Role = Literal["gate", "report"]
"""Few metrics decide, since each more is one more chance of a false alarm; the others are told."""
Change = Literal["EQUAL", "BETTER", "WORSE", "UNKNOWN"]

LEAST_CV = 0.01
"""Rounds of one boot scatter at least this much: an interval from fewer or luckier rounds would be too narrow."""
_MEDIAN_FACTOR = 1.2533
"""Standard error of a median over that of a mean: the square root of pi/2, for normal values."""
_CONFIDENCE = 0.95
_FEWEST_ROUNDS = 2


@dataclass(frozen=True)
class Margin:
    """How much worse a metric may be, as a fraction, and which direction is better."""

    metric: str
    margin: float
    higher_is_better: bool


_DECODE = (
    Margin("step_ms", 0.03, False),
    Margin("tok_s", 0.05, True),
    Margin("ttft_ms_p50", 0.10, False),
    Margin("accept_len", 0.05, True),
)
_PREFILL = (Margin("tok_s", 0.05, True), Margin("ttft_ms_p50", 0.10, False))
_ACCEPTANCE_MARGIN = 0.05


@dataclass(frozen=True)
class MetricVerdict:
    """One metric of one test in both arms. `change` is EQUAL where the interval of the ratio holds 1.

    `ratio` is candidate over control with its two one-sided 95 % bounds; None where a value is missing.
    """

    metric: str
    role: Role
    control: float | None
    candidate: float | None
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    change: Change
    ratio: float | None
    low: float | None
    high: float | None
    margin: float
    reason: str
    more_rounds: int | None = None


def compare_speed(rows_a: Sequence[Row], rows_b: Sequence[Row], scatter: float = 0.0) -> list[MetricVerdict]:
    """Compare a candidate B with its control A, row by row. No margin of a rate is narrower than `scatter`, below 1.

    Raises DeployError (exit 64) where the runs asked for different things: their numbers mean nothing side by side.
    """
    specs = {row["spec"] for row in (*rows_a, *rows_b) if row.get("spec")}
    if len(specs) > 1:
        raise DeployError(
            "the two speed runs cannot be compared",
            why=f"they measured different prompts, lengths or samplers ({' and '.join(sorted(specs))})",
            fix="measure both with the same version and the same mode",
            code=ExitCode.USAGE,
        )
    others = {_key(row): row for row in rows_b}
    busiest = max((row.get("concurrency") or 1 for row in rows_a if row.get("test") != "prefill"), default=1)
    return [
        replace(verdict, role=_role(row, verdict.metric, busiest))
        for row in rows_a
        for verdict in _row_verdicts(row, others.get(_key(row), {}), scatter)
    ]


def _role(row: Row, metric: str, busiest: int) -> Role:
    """Steps, rates and acceptance of one stream decide, and the rate of the most streams."""
    if row.get("test") == "prefill" or row.get("sampler") == "sampled" or metric.startswith("ttft"):
        return "report"
    level = row.get("concurrency") or 1
    return "gate" if level == 1 or (level == busiest and metric.startswith("tok_s")) else "report"


def _key(row: Row) -> tuple[Any, ...]:
    names = ("test", "prompt", "sampler", "concurrency", "max_tokens", "target_tokens")
    return tuple(row.get(name) for name in names)


def _row_verdicts(a: Row, b: Row, scatter: float) -> Iterator[MetricVerdict]:
    for own in _PREFILL if a.get("test") == "prefill" else _DECODE:
        margin = own if own.metric == "accept_len" else _widened(own, scatter)
        if a.get(margin.metric) is not None or b.get(margin.metric) is not None:
            yield _judge(a, b, margin, _spread_of(a, margin.metric), _spread_of(b, margin.metric))
        elif margin.metric == "tok_s":
            yield _missing(a, b, margin)
    for name in sorted(name for name in a if name.startswith("accept_pos") and a[name] is not None):
        yield _judge(a, b, Margin(name, _ACCEPTANCE_MARGIN, True), _binomial(a, name), _binomial(b, name))


def _widened(own: Margin, scatter: float) -> Margin:
    """A rate that falls by the share `scatter` comes with times that grow by scatter / (1 - scatter)."""
    least = scatter if own.higher_is_better else scatter / (1 - scatter)
    return replace(own, margin=max(own.margin, least))


def _judge(a: Row, b: Row, margin: Margin, spread_a: float | None, spread_b: float | None) -> MetricVerdict:
    """PASS: the interval lies inside the margin. FAIL: outside. Else INCONCLUSIVE with the rounds that would decide."""
    control, candidate = a.get(margin.metric), b.get(margin.metric)
    if not control or candidate is None or spread_a is None or spread_b is None:
        return _missing(a, b, margin)
    ratio = candidate / control
    width = _quantile(_rounds(a) + _rounds(b) - 2) * ratio * math.hypot(spread_a, spread_b)
    low, high = ratio - width, ratio + width
    limit = 1 - margin.margin if margin.higher_is_better else 1 + margin.margin
    if margin.metric.startswith("accept_pos"):
        # The same greedy text brings the same acceptance: as a bound of chance the interval is too wide to pass.
        inside = ratio >= limit
    else:
        inside = low >= limit if margin.higher_is_better else high <= limit
    outside = high < limit if margin.higher_is_better else low > limit
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE"] = "PASS" if inside else "FAIL" if outside else "INCONCLUSIVE"
    change: Change = "EQUAL" if low <= 1 <= high else "BETTER" if (ratio > 1) == margin.higher_is_better else "WORSE"
    words = {"EQUAL": "equal within noise", "BETTER": "better", "WORSE": "worse"}[change]
    more = _more_rounds(ratio, limit, width, min(_rounds(a), _rounds(b))) if verdict == "INCONCLUSIVE" else None
    return MetricVerdict(
        metric=_name(a, margin.metric),
        role="gate",
        control=control,
        candidate=candidate,
        verdict=verdict,
        change=change,
        ratio=ratio,
        low=low,
        high=high,
        margin=margin.margin,
        reason=f"{100 * (ratio - 1):+.1f} % ({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f}), {words}; the margin "
        f"is {100 * (limit - 1):+.0f} %" + (f"; about {more} more rounds would decide" if more else ""),
        more_rounds=more,
    )


def _missing(a: Row, b: Row, margin: Margin) -> MetricVerdict:
    which = "the control" if not a.get(margin.metric) else "the candidate"
    status = (a if which == "the control" else b).get("status") or "not measured"
    return MetricVerdict(
        metric=_name(a, margin.metric),
        role="gate",
        control=a.get(margin.metric),
        candidate=b.get(margin.metric),
        verdict="INCONCLUSIVE",
        change="UNKNOWN",
        ratio=None,
        low=None,
        high=None,
        margin=margin.margin,
        reason=f"{which} has no usable number ({status})",
    )


def _spread_of(row: Row, metric: str) -> float | None:
    """Relative standard error of a row's median; None where it rests on fewer than two rounds."""
    if _rounds(row) < _FEWEST_ROUNDS:
        return None
    name = "ttft_ms_cv" if metric == "ttft_ms_p50" else f"{metric}_cv"
    cv = max(row.get(name) or 0.0, LEAST_CV)
    return float(_MEDIAN_FACTOR * cv / math.sqrt(_rounds(row)))


def _binomial(row: Row, name: str) -> float | None:
    """Relative standard error of an acceptance, from its drafts."""
    rate, drafts = row.get(name), row.get("drafts")
    if not rate or not drafts:
        return 0.0 if drafts else None
    return float(math.sqrt((1 - rate) / (rate * drafts)))


def _rounds(row: Row) -> int:
    return int(row.get("rounds") or 0)


def _quantile(freedom: int) -> float:
    """One-sided 95 % point of Student's distribution."""
    from scipy.stats import t

    return float(t.ppf(_CONFIDENCE, max(freedom, 1)))


def _more_rounds(ratio: float, limit: float, width: float, rounds: int) -> int | None:
    """Rounds beyond these until the interval clears the limit; None where the ratio sits on it."""
    room = abs(ratio - limit)
    if room <= width / 20:
        return None
    return max(1, math.ceil(rounds * (width / room) ** 2) - rounds)


def _name(row: Mapping[str, Any], metric: str) -> str:
    if row.get("test") == "prefill":
        return f"{metric}, prefill {row.get('target_tokens')}"
    sampler = "" if row.get("sampler") in (None, "greedy") else f" {row['sampler']}"
    return f"{metric}, {row.get('prompt') or 'decode'}{sampler} c{row.get('concurrency', 1)}"
