"""The older rule for orphan layers, which guesses from even intervals, misses layers that the true one finds."""

from __future__ import annotations

import pytest

from shardwright.facts.model import IndexRule
from shardwright.plan.interval_gate import (
    CounterExample,
    _uneven_splits,
    counter_example,
    even_intervals,
    missed_orphans,
    self_computing,
)

GLM = IndexRule(freq=4, offset=3)


@pytest.mark.parametrize(
    ("layers", "stages", "intervals"),
    [(78, 2, ((0, 39), (39, 78))), (7, 3, ((0, 2), (2, 4), (4, 7))), (5, 1, ((0, 5),))],
)
def test_even_intervals_round_down(layers: int, stages: int, intervals: tuple[tuple[int, int], ...]) -> None:
    assert even_intervals(layers, stages) == intervals


def test_what_an_even_split_would_flip_covers_the_orphans_of_some_splits_only() -> None:
    # Full layers near the middle: 38, 42 and 46; an even split of 78 flips 39, 40 and 41.
    assert missed_orphans(GLM, (39, 39)) == missed_orphans(GLM, (41, 37)) == missed_orphans(GLM, (42, 36)) == ()
    assert missed_orphans(GLM, (43, 35)) == (43, 44, 45)
    assert missed_orphans(GLM, (45, 33)) == (45,)


def test_the_counter_example_has_the_fewest_missed_layers_on_the_most_even_split() -> None:
    assert counter_example(GLM, 78, 2) == CounterExample((45, 33), (45,), (45,))
    assert counter_example(IndexRule(freq=1), 78, 2) is None
    assert counter_example(GLM, 78, 1) is None
    # Full layers of nine: 0, 1, 4 and 7; an even split in three flips 3 and 6.
    assert counter_example(IndexRule(freq=3, offset=2), 9, 3) == CounterExample((5, 3, 1), (5, 6, 8), (5, 8))


@pytest.mark.parametrize(
    ("layers", "stages", "splits"),
    [
        (7, 3, [(3, 2, 2), (4, 2, 1)]),
        (8, 3, [(3, 3, 2), (4, 3, 1)]),
        (5, 2, [(3, 2), (4, 1)]),
        (4, 1, []),
    ],
)
def test_layers_are_moved_from_the_last_stage_to_the_first(
    layers: int, stages: int, splits: list[tuple[int, ...]]
) -> None:
    assert list(_uneven_splits(layers, stages)) == splits


def test_the_layers_that_compute_their_own_index_by_stage() -> None:
    # Full layers of fourteen: 0, 1, 2, 6 and 10.
    assert self_computing(GLM, (2, 5, 7)) == ((0, 1), (2, 6), (10,))
    assert self_computing(GLM, (6, 4, 4)) == ((0, 1, 2), (6,), (10,))
