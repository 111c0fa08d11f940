"""The pipeline stages of a deployment: layer ranges and orphans."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from shardwright.facts.model import IndexRule
from shardwright.plan.index_sharing import orphan_layers


class Stage(Struct, frozen=True):
    """One stage with layers [first_layer, end_layer) and those of them that would read an unwritten index."""

    index: int
    first_layer: int
    end_layer: int
    orphans: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.first_layer


class Plan(Struct, frozen=True):
    """`partition_error` is set, and `stages` empty, when the split cannot be used. `stages` is also empty when the
    number of layers is not known."""

    stages: tuple[Stage, ...] = ()
    partition_error: str = ""

    @property
    def partition(self) -> tuple[int, ...]:
        return tuple(stage.num_layers for stage in self.stages)

    @property
    def orphans(self) -> tuple[int, ...]:
        return tuple(layer for stage in self.stages for layer in stage.orphans)


def build_stages(partition: Sequence[int], rule: IndexRule | None) -> tuple[Stage, ...]:
    """Stages from layers per stage; without an index rule no layer is an orphan."""
    stages, first = [], 0
    for index, count in enumerate(partition):
        end = first + count
        stages.append(Stage(index, first, end, orphan_layers(rule, first, end) if rule else ()))
        first = end
    return tuple(stages)
