"""Is the rule that finds orphan layers more than always true? Compared with an older rule on a counter-example.

Patches that recompute indices used to guess a rank's layers from an even split. On many uneven splits that guess covers
the true orphans by luck; on a split that crosses a full layer it does not (field report on GLM-5.3, section 5.5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from shardwright.facts.model import IndexRule
from shardwright.plan.index_sharing import full_layers, orphan_layers
from shardwright.plan.stages import build_stages


class CounterExample(Struct, frozen=True):
    """A split on which the guess from even intervals leaves layers unsafe, and the true intervals leave none."""

    partition: tuple[int, ...]
    orphans: tuple[int, ...]
    missed_by_even_intervals: tuple[int, ...]


def even_intervals(num_layers: int, stages: int) -> tuple[tuple[int, int], ...]:
    """The layers [first, end) of each rank as `rank * layers // ranks` has them."""
    return tuple(pairwise(rank * num_layers // stages for rank in range(stages + 1)))


def missed_orphans(rule: IndexRule, partition: Sequence[int]) -> tuple[int, ...]:
    """Orphans of a split that flipping by even intervals would leave reading an unwritten index."""
    flipped = {
        layer
        for first, end in even_intervals(sum(partition), len(partition))
        for layer in orphan_layers(rule, first, end)
    }
    orphans = (layer for stage in build_stages(partition, rule) for layer in stage.orphans)
    return tuple(layer for layer in orphans if layer not in flipped)


def counter_example(rule: IndexRule, num_layers: int, stages: int) -> CounterExample | None:
    """The split with the fewest layers that the older rule misses, the most even of these; None where it misses none.

    For 78 layers, frequency 4 and offset 3 in two stages it is 45,33 with layer 45, as in the field report.
    """
    found = ((missed_orphans(rule, partition), partition) for partition in _uneven_splits(num_layers, stages))
    wrong = [(missed, partition) for missed, partition in found if missed]
    if not wrong:
        return None
    missed, partition = min(wrong, key=lambda pair: len(pair[0]))
    orphans = tuple(layer for stage in build_stages(partition, rule) for layer in stage.orphans)
    return CounterExample(partition, orphans, missed)


def self_computing(rule: IndexRule, partition: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For each stage its layers that compute their own index."""
    full = full_layers(rule, sum(partition))
    return tuple(
        tuple(layer for layer in full if stage.first_layer <= layer < stage.end_layer)
        for stage in build_stages(partition, rule)
    )


def _uneven_splits(num_layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Even splits with layers moved from the last stage to the first, one more each time."""
    even = [end - first for first, end in even_intervals(num_layers, stages)]
    if stages < 2:
        return
    for moved in range(1, even[-1]):
        yield (even[0] + moved, *even[1:-1], even[-1] - moved)
