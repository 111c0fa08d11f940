"""Search over all partitions: exact, by dynamic programming over stage boundaries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import pairwise

from msgspec import Struct

BlocksOf = Callable[[int, int, int], int]
"""Blocks that fit on stage s when it holds the layers [start, end)."""


class SearchLimits(Struct, frozen=True):
    """`cuts`: layers at which a stage may begin. `max_imbalance`: compute of the slowest stage over the mean.

    `last_extra_layers`: what the last stage computes beside its own layers, in layers: the MTP layers as often as they
    draft, and the head.
    """

    cuts: frozenset[int]
    last_extra_layers: float = 0.0
    max_imbalance: float = 1.5


class Candidate(Struct, frozen=True):
    partition: tuple[int, ...]
    blocks: int
    slowest_layers: float
    orphans: int


def search_partitions(
    num_layers: int,
    stages: int,
    blocks_of: BlocksOf,
    orphans_of: Callable[[int, int], int],
    limits: SearchLimits,
    top: int = 8,
) -> tuple[Candidate, ...]:
    """The partitions with the most blocks on their tightest stage, best first; empty when none is allowed.

    The first is exact in every part: most blocks, then the least compute on the slowest stage, then the fewest orphan
    layers, then the shortest early stages. The others hold exactly the next-best numbers of blocks.
    Bisection with greedy filling would be wrong here: an orphan run makes a longer stage cheaper than a shorter one.
    """
    table = _StageTable(num_layers, stages, blocks_of, limits)
    ranked = _most_blocks(table, top)
    if not ranked:
        return ()
    best = _refine(table, ranked[0][0], orphans_of)
    found = {best}
    found |= {_edges_to_partition(edges, num_layers) for _, edges in ranked}
    candidates = [_candidate(partition, table, orphans_of) for partition in found]
    ordered = sorted(candidates, key=lambda c: (-c.blocks, c.slowest_layers, c.orphans, c.partition))
    first = next(candidate for candidate in ordered if candidate.partition == best)
    return (first, *(candidate for candidate in ordered if candidate.partition != best))[:top]


class _StageTable:
    """Blocks of every allowed stage, each asked for once; a stage that is not allowed is absent."""

    def __init__(self, num_layers: int, stages: int, blocks_of: BlocksOf, limits: SearchLimits) -> None:
        self.num_layers, self.stages = num_layers, stages
        self._extra = limits.last_extra_layers
        cap = limits.max_imbalance * (num_layers + self._extra) / stages
        starts = sorted(limits.cuts)
        # rows[stage][end] lists (start, blocks) of the stages that end there.
        self.rows: list[dict[int, list[tuple[int, int]]]] = []
        for stage in range(stages):
            ends = [num_layers] if stage == stages - 1 else starts
            row: dict[int, list[tuple[int, int]]] = {}
            for end in ends:
                options = [
                    (start, blocks)
                    for start in ([0] if stage == 0 else starts)
                    if start < end
                    and self.compute_layers(start, end) <= cap
                    and (blocks := blocks_of(stage, start, end)) > 0
                ]
                if options:
                    row[end] = options
            self.rows.append(row)

    def compute_layers(self, start: int, end: int) -> float:
        return end - start + (self._extra if end == self.num_layers else 0.0)


def _most_blocks(table: _StageTable, top: int) -> list[tuple[int, tuple[int, ...]]]:
    """The `top` best (blocks, starts of stages) by blocks alone. Keeping the best prefixes is exact for a minimum."""
    best: dict[int, list[tuple[int, tuple[int, ...]]]] = {0: [(sys.maxsize, ())]}
    for row in table.rows:
        following: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for end, options in row.items():
            reached = [(start, blocks) for start, blocks in options if start in best]
            if not reached:
                continue
            # Most are far below the best: only these are worth a tuple of their edges.
            floor = min(nlargest(top, [min(have, blocks) for start, blocks in reached for have, _ in best[start]]))
            found = [
                (min(have, blocks), (*edges, start))
                for start, blocks in reached
                if blocks >= floor
                for have, edges in best[start]
                if have >= floor
            ]
            following[end] = sorted(found, key=lambda entry: (-entry[0], entry[1]))[:top]
        best = following
    return best.get(table.num_layers, [])


def _refine(table: _StageTable, blocks: int, orphans_of: Callable[[int, int], int]) -> tuple[int, ...]:
    """Among all partitions with that many blocks: least compute on the slowest stage, then fewest orphans."""
    slowest, _ = _cheapest(table, blocks, None, table.compute_layers, max)
    _, edges = _cheapest(table, blocks, slowest, lambda start, end: float(orphans_of(start, end)), lambda a, b: a + b)
    return _edges_to_partition(edges, table.num_layers)


def _cheapest(
    table: _StageTable,
    blocks: int,
    slowest: float | None,
    cost: Callable[[int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, tuple[int, ...]]:
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for row in table.rows:
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for end, options in row.items():
            found = [
                (join(best[start][0], cost(start, end)), (*best[start][1], start))
                for start, have in options
                if have >= blocks and start in best and (slowest is None or table.compute_layers(start, end) <= slowest)
            ]
            if found:
                following[end] = min(found)
        best = following
    return best[table.num_layers]


def _candidate(partition: Sequence[int], table: _StageTable, orphans_of: Callable[[int, int], int]) -> Candidate:
    edges = [sum(partition[:stage]) for stage in range(len(partition) + 1)]
    spans = list(pairwise(edges))
    blocks = min(dict(table.rows[stage][end])[start] for stage, (start, end) in enumerate(spans))
    return Candidate(
        partition=tuple(partition),
        blocks=blocks,
        slowest_layers=max(table.compute_layers(start, end) for start, end in spans),
        orphans=sum(orphans_of(start, end) for start, end in spans),
    )


def _edges_to_partition(edges: Sequence[int], num_layers: int) -> tuple[int, ...]:
    ends = (*edges[1:], num_layers)
    return tuple(end - start for start, end in zip(edges, ends, strict=True))
