"""How far two scores of one prompt lie apart: per position, pooled, and at the first greedy token that differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.probes.scores import Score, Top

HARD_GAP_NATS = 0.5
"""Above this a greedy divergence is no rounding between two near-equal tokens."""
_CERTAIN_NATS = 9999.0
"""A preference without limit, as vLLM writes it."""
_SMALLEST_REST = 1e-5
"""What five stored digits leave uncertain of a rest bucket."""


@dataclass(frozen=True)
class Position:
    """One prompt token: its place (counted from 0), the Kullback-Leibler divergence in nats, and what else differs."""

    prompt: str
    position: int
    kl: float
    same_top: bool
    logprob_gap: float
    """|difference of the actual token's logprobs|, nats."""


@dataclass(frozen=True)
class Distance:
    """Positions pooled. Divergences and gaps in nats; `same_top` is the share of positions with one likeliest token."""

    positions: int
    mean_kl: float
    p99_kl: float
    max_kl: float
    same_top: float
    gap_p50: float
    gap_p99: float
    gap_max: float
    worst: tuple[str, int] | None
    """Prompt and position of the largest divergence."""


@dataclass(frozen=True)
class Divergence:
    """The first greedy token on which two answers part; `gap` is the larger preference of either side, nats."""

    prompt: str
    index: int
    gap: float

    @property
    def hard(self) -> bool:
        return self.gap > HARD_GAP_NATS


def kl_lower_bound(p: Top, q: Top) -> float:
    """The least Kullback-Leibler divergence KL(P||Q), nats, that two lists of top logprobs allow.

    Tokens in both lists count one by one. Those that only Q lists are one bucket, everything else is the rest bucket:
    what P gives to the former is not known, so the split that gives the smallest sum is taken. Grouping outcomes never
    raises a KL divergence (data processing inequality), hence a lower bound; two lists without a common token come out
    large, not zero.
    """
    rest_p = max(0.0, 1.0 - math.fsum(map(math.exp, p.values())))
    rest_q = max(0.0, 1.0 - math.fsum(map(math.exp, q.values())))
    total = math.fsum(math.exp(p[token]) * (p[token] - q[token]) for token in p if token in q)
    outside_p = math.fsum(math.exp(value) for token, value in p.items() if token not in q) + rest_p
    only_q = [math.exp(value) for token, value in q.items() if token not in p]
    bucket_q = math.fsum(only_q)
    room = min(rest_p, len(only_q) * math.exp(_most_of_an_unlisted(p)))
    share = outside_p * bucket_q / (bucket_q + rest_q) if bucket_q + rest_q > 0 else 0.0
    bucket_p = min(share, room)
    return max(0.0, total + _term(bucket_p, bucket_q) + _term(outside_p - bucket_p, rest_q))


def positions(prompt: str, a: Score, b: Score) -> list[Position]:
    """The prompt's positions that both sides scored."""
    rows = []
    for place, (mine, other) in enumerate(zip(a.prompt_logprobs, b.prompt_logprobs, strict=True), start=1):
        top_a, top_b = a.prompt_top[place - 1], b.prompt_top[place - 1]
        same = _likeliest(top_a) == _likeliest(top_b)
        rows.append(Position(prompt, place, kl_lower_bound(top_a, top_b), same, abs(mine - other)))
    return rows


def pool(rows: Sequence[Position]) -> Distance | None:
    """All rows as one distance; None without any."""
    if not rows:
        return None
    gaps = sorted(row.logprob_gap for row in rows)
    kls = sorted(row.kl for row in rows)
    worst = max(rows, key=lambda row: row.kl)
    return Distance(
        positions=len(rows),
        mean_kl=math.fsum(kls) / len(kls),
        p99_kl=quantile(kls, 0.99),
        max_kl=kls[-1],
        same_top=sum(row.same_top for row in rows) / len(rows),
        gap_p50=quantile(gaps, 0.5),
        gap_p99=quantile(gaps, 0.99),
        gap_max=gaps[-1],
        worst=(worst.prompt, worst.position) if worst.kl > 0 else None,
    )


def first_divergence(prompt: str, a: Score, b: Score) -> Divergence | None:
    """Where two greedy answers part, None where they are one; an answer that ends early parts there."""
    for index, (mine, other) in enumerate(zip(a.ids, b.ids, strict=False)):
        if mine != other:
            gap = max(_preference(a.top[index], mine, other), _preference(b.top[index], other, mine))
            return Divergence(prompt, index, gap)
    if len(a.ids) != len(b.ids):
        return Divergence(prompt, min(len(a.ids), len(b.ids)), _CERTAIN_NATS)
    return None


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of the ordered values do not exceed."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def by_prompt(rows: Iterable[Position]) -> Mapping[str, Distance]:
    """One distance for each prompt."""
    grouped: dict[str, list[Position]] = {}
    for row in rows:
        grouped.setdefault(row.prompt, []).append(row)
    pooled = {name: pool(group) for name, group in grouped.items()}
    return {name: distance for name, distance in pooled.items() if distance is not None}


def _preference(top: Top, chosen: int, other: int) -> float:
    """By how many nats a side prefers its own token; at least that, where the other's is not among its likeliest."""
    if not top:
        return _CERTAIN_NATS
    mine = top.get(chosen, max(top.values()))
    return mine - top.get(other, min(top.values()))


def _most_of_an_unlisted(top: Top) -> float:
    """The highest logprob that a token outside the list can have; the lowest entry may be the actual token's own."""
    return sorted(top.values())[:2][-1] if top else 0.0


def _likeliest(top: Top) -> int | None:
    return max(top, key=lambda token: top[token], default=None)


def _term(p: float, q: float) -> float:
    if p <= 0:
        return 0.0
    return p * math.log(p / max(q, _SMALLEST_REST))
