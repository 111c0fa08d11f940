"""Borders of the partition search and of hand partitions."""

from __future__ import annotations

import pytest

from shardwright.facts.model import IndexRule
from shardwright.plan.index_sharing import nearest_aligned_split
from shardwright.plan.partition import PartitionError, parse_partition
from shardwright.plan.search import Candidate, SearchLimits, search_partitions


def found(
    layers: int, stages: int, limits: SearchLimits | None = None, top: int = 8, blocks: int = 5
) -> list[tuple[int, ...]]:
    """The partitions that are found where every stage has room for the same number of blocks."""
    limits = limits or SearchLimits(frozenset(range(1, layers)), 0.0, 99.0)
    candidates = search_partitions(layers, stages, lambda *_: blocks, lambda *_: 0, limits, top)
    return [candidate.partition for candidate in candidates]


def test_of_equally_good_partitions_those_with_the_earliest_cuts_are_listed() -> None:
    assert found(6, 3, top=3) == [(2, 2, 2), (1, 2, 3), (1, 3, 2)]
    assert found(6, 3, top=1) == [(2, 2, 2)]


def test_eight_partitions_are_listed_unless_more_are_asked_for() -> None:
    limits = SearchLimits(frozenset(range(1, 9)), 0.0, 99.0)
    assert len(search_partitions(9, 3, lambda *_: 5, lambda *_: 0, limits)) == 8
    assert len(found(9, 3, top=9)) == 9


def test_a_stage_without_room_is_no_stage() -> None:
    assert found(4, 2, blocks=0) == []
    assert len(found(4, 2, blocks=1)) == 3


@pytest.mark.parametrize(
    ("imbalance", "extra", "partitions"),
    [
        (1.5, 0.0, [(2, 2), (1, 3), (3, 1)]),
        (1.49, 0.0, [(2, 2)]),
        (1.0, 0.0, [(2, 2)]),
        (1.0, 2.0, [(3, 1)]),
        (1.34, 2.0, [(3, 1), (2, 2)]),
    ],
)
def test_no_stage_computes_more_than_its_share(
    imbalance: float, extra: float, partitions: list[tuple[int, ...]]
) -> None:
    assert found(4, 2, SearchLimits(frozenset({1, 2, 3}), extra, imbalance)) == partitions


def test_the_limits_are_those_that_are_told() -> None:
    assert SearchLimits(frozenset()) == SearchLimits(frozenset(), 0.0, 1.5)
    (best,) = search_partitions(4, 1, lambda *_: 7, lambda start, end: end - start, SearchLimits(frozenset(), 2.0))
    assert best == Candidate((4,), 7, 6.0, 4)


@pytest.mark.parametrize(
    ("text", "counts"), [("123456789,1", (123456789, 1)), ("1234567890,1", None), ("12345678,1", (12345678, 1))]
)
def test_counts_have_at_most_nine_digits(text: str, counts: tuple[int, ...] | None) -> None:
    if counts is None:
        with pytest.raises(PartitionError):
            parse_partition(text)
    else:
        assert parse_partition(text) == counts


def test_no_stage_of_an_aligned_split_is_empty() -> None:
    # Full layers of eight: 0, 1, 2 and 6.
    rule = IndexRule(freq=4, offset=3)
    assert nearest_aligned_split(rule, (1, 7)) == (1, 7)
    assert nearest_aligned_split(IndexRule(types=("full", *(["shared"] * 5), "full", "shared")), (1, 7)) == (6, 2)
    assert nearest_aligned_split(IndexRule(types=("full", *(["shared"] * 7))), (1, 7)) is None
    assert nearest_aligned_split(rule, (8,)) == (8,)
