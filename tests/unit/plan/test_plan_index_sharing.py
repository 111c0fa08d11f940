"""Orphan layers and aligned splits, against the field report's numbers and against brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.facts.model import IndexRule
from shardwright.plan.index_sharing import computes_own_index, full_layers, nearest_aligned_split, orphan_layers
from shardwright.plan.stages import Plan, build_stages

GLM = IndexRule(freq=4, offset=3)
LAYERS = 78


def orphans(*partition: int, rule: IndexRule = GLM) -> tuple[int, ...]:
    return Plan(build_stages(partition, rule)).orphans


def old_interval_orphans(partition: Sequence[int]) -> tuple[int, ...]:
    """What the field report's first rule saw: it took rank*n//w for a stage's start, whatever the partition said."""
    n, w = sum(partition), len(partition)
    starts = [rank * n // w for rank in range(w)]
    return tuple(layer for start, end in pairwise([*starts, n]) for layer in orphan_layers(GLM, start, end))


def test_a_shift_of_the_full_layers_by_one_is_seen():
    assert full_layers(GLM, LAYERS) == (0, 1, *range(2, LAYERS, 4))
    assert len(full_layers(GLM, LAYERS)) == 21


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ((39, 39), (39, 40, 41)),
        ((40, 38), (40, 41)),
        ((41, 37), (41,)),
        ((42, 36), ()),
        ((45, 33), (45,)),
        ((20, 20, 20, 18), (20, 21, 40, 41, 60, 61)),
        ((18, 20, 20, 20), ()),
        ((22, 20, 20, 16), ()),
        ((26, 26, 26), (52, 53)),
        ((78,), ()),
    ],
)
def test_no_orphan_layer_of_the_measured_splits_is_missed(partition: tuple[int, ...], expected: tuple[int, ...]):
    assert orphans(*partition) == expected


def test_even_interval_rule_misses_layer_45_and_the_real_ranges_do_not():
    assert 45 not in old_interval_orphans((45, 33))
    assert orphans(45, 33) == (45,)


def test_a_stage_without_any_full_layer_counts_all_its_layers():
    assert orphans(7, 3, 68) == (7, 8, 9)


def test_orphans_are_not_counted_where_every_layer_computes_its_own():
    assert orphans(39, 39, rule=IndexRule(freq=1)) == ()
    assert Plan(build_stages((39, 39), None)).orphans == ()


@pytest.mark.parametrize(
    ("rule", "full"),
    [
        (IndexRule(freq=4, offset=0), (3, 7)),  # the formula shifts by one: layers 3, 7, ... and not 0
        (IndexRule(freq=4, offset=1), (0, 4, 8)),
        (IndexRule(freq=4, offset=2), (0, 1, 5, 9)),
        (IndexRule(freq=4, offset=30), tuple(range(10))),
        (IndexRule(freq=30, offset=2), (0, 1)),
        (IndexRule(), tuple(range(10))),
    ],
)
def test_offset_at_its_edges_follows_the_engines_formula(rule: IndexRule, full: tuple[int, ...]):
    assert full_layers(rule, 10) == full


def test_a_pattern_is_not_overruled_by_freq_and_offset():
    rule = IndexRule(freq=4, offset=3, pattern="FSSFSS")
    assert full_layers(rule, 6) == (0, 3)
    assert computes_own_index(rule, 6), "the engine's rule ends with the pattern: later layers compute"


def test_indexer_types_are_not_overruled_by_a_pattern():
    rule = IndexRule(freq=4, offset=3, pattern="FSSFSS", types=("full", "shared", "full"))
    assert full_layers(rule, 5) == (0, 2, 3, 4)


def aligned_splits(rule: IndexRule, layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every split without orphans, by trying all."""

    def extend(start: int, left: int) -> Iterator[tuple[int, ...]]:
        if left == 1:
            yield (layers - start,)
            return
        for cut in range(start + 1, layers):
            if computes_own_index(rule, cut):
                for rest in extend(cut, left - 1):
                    yield (cut - start, *rest)

    return extend(0, stages)


def distance(split: Sequence[int], wanted: Sequence[int]) -> int:
    return sum(abs(sum(split[:stages]) - sum(wanted[:stages])) for stages in range(1, len(wanted)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[IndexRule, tuple[int, ...]]:
    stages = draw(st.integers(1, 4))
    wanted = tuple(draw(st.integers(1, 7)) for _ in range(stages))
    return IndexRule(freq=draw(st.integers(1, 6)), offset=draw(st.integers(0, 6))), wanted


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(problems())
def test_a_nearer_aligned_split_is_never_overlooked(problem: tuple[IndexRule, tuple[int, ...]]):
    rule, wanted = problem
    every = list(aligned_splits(rule, sum(wanted), len(wanted)))
    found = nearest_aligned_split(rule, wanted)
    if not every:
        assert found is None
        return
    assert found in every
    assert distance(found, wanted) == min(distance(split, wanted) for split in every)


def test_the_proposed_split_is_the_nearest_and_not_only_an_aligned_one():
    assert nearest_aligned_split(GLM, (41, 37)) == (42, 36)
    assert nearest_aligned_split(GLM, (39, 39)) == (38, 40)
    assert nearest_aligned_split(GLM, (20, 20, 20, 18)) == (18, 20, 20, 20)


def test_no_aligned_split_is_proposed_where_there_is_none():
    assert nearest_aligned_split(IndexRule(freq=8, offset=1), (2, 2)) is None
