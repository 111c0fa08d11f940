"""Memory for the KV cache per card of a stage: given, measured on one boot and moved with the layers, or reckoned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from shardwright.layout.capacity import Calibration
from shardwright.plan.layer_pages import LayerPages
from shardwright.plan.weights import StageWeights

GIB = 1 << 30

Basis = Literal["given", "calibrated", "converted", "estimated", "bound"]
"""given: set by a flag or variable. calibrated: measured at this TP and PP, moved with the layers. converted: the same,
but measured with another KV dtype. estimated: overheads measured at another TP or PP, or declared. bound: nothing is
known of overheads, so no more than this can be left."""


class MemoryUnknownError(ValueError):
    """Nothing says how much memory a stage has; the text says what is missing."""


class MemorySources(Struct, frozen=True):
    """What is known of memory, from whatever source.

    `given_gib`: KV bytes per card by flag. `card_gib`: memory per card of each stage; `utilization` of it is the
    engine's. `boundary_bytes`: buffer that a stage holds when it begins on an orphan and a patch carries the rows.
    `workspace_bytes`: what this deployment's prefill workspace takes less than that of the calibration, per card;
    `other_cache`: the calibration was measured with another KV dtype.
    """

    tensor: int
    stages: int
    given_gib: float | None = None
    card_gib: tuple[float, ...] = ()
    utilization: float = 0.9
    calibration: Calibration | None = None
    overhead_gib: float | None = None
    boundary_bytes: int = 0
    workspace_bytes: int = 0
    other_cache: bool = False


class StageMemory:
    """Available bytes per card for any stage and range of layers; `basis` says how sure that is."""

    def __init__(
        self,
        sources: MemorySources,
        pages: LayerPages,
        weights: StageWeights | None,
        calibrated_weights: StageWeights | None = None,
    ) -> None:
        """`calibrated_weights`: the weights at the TP of the calibration, where that is another one.

        Raises MemoryUnknownError.
        """
        self._pages, self._weights = pages, weights
        self._buffer = sources.boundary_bytes
        self._per_layer = 0.0
        self._only: tuple[int, ...] | None = None
        calibration = sources.calibration
        stages = sources.stages
        if sources.given_gib is not None:
            self.basis: Basis = "given"
            self._buffer = 0
            self._base = [sources.given_gib * GIB] * stages
        elif calibration and _same_shape(calibration, sources):
            self.basis = "converted" if sources.other_cache else "calibrated"
            self._from_calibration(sources, calibration)
        else:
            self._from_weights(sources, calibrated_weights)

    def available_bytes(self, stage: int, start: int, end: int) -> float:
        """Bytes for the KV cache on a card of this stage, if it held the layers [start, end).

        Raises MemoryUnknownError where layers were moved and nothing says what they weigh.
        """
        if self._only is not None and end - start != self._only[stage]:
            raise MemoryUnknownError(
                "capacity.calibration has no layer_gib and the weights are not known here, so no layer can be moved"
            )
        size = self._base[stage]
        if self._per_layer:
            size -= (end - start) * self._per_layer
        elif self.basis != "given" and self._weights is not None:
            size -= self._weights.stage_bytes(start, end)
        if self._buffer and start and self._pages.orphans(start, end):
            size -= self._buffer
        return size

    def _from_calibration(self, sources: MemorySources, calibration: Calibration) -> None:
        partition = calibration.partition
        if calibration.layer_gib is not None:
            self._per_layer = calibration.layer_gib * GIB
        elif self._weights is None:
            self._only = partition
        if sum(partition) != self._pages.num_layers:
            raise MemoryUnknownError(
                f"capacity.calibration.partition has {sum(partition)} layers, the model {self._pages.num_layers}"
            )
        if calibration.boundary_buffer:
            self._buffer = 0
        shift = self._utilization_shift(sources, calibration)
        start, self._base = 0, []
        for stage, count in enumerate(partition):
            moved = count * self._per_layer
            if not self._per_layer and self._weights is not None:
                moved = self._weights.stage_bytes(start, start + count)
            self._base.append(calibration.available_gib[stage] * GIB + moved + shift[stage] + sources.workspace_bytes)
            start += count

    def _from_weights(self, sources: MemorySources, calibrated_weights: StageWeights | None) -> None:
        if self._weights is None:
            raise MemoryUnknownError(
                "neither a calibration for this TP and PP nor the size of the weights is known here"
            )
        if len(sources.card_gib) != sources.stages:
            shape = f"TP={sources.tensor} PP={sources.stages}"
            raise MemoryUnknownError(f"the memory of the cards that {shape} takes is not known here")
        overheads = _overheads(sources, calibrated_weights)
        self.basis = "bound" if overheads is None else "estimated"
        inner, last = overheads if overheads is not None else (0.0, 0.0)
        self._base = [
            gib * GIB * sources.utilization - (last if stage == sources.stages - 1 else inner)
            for stage, gib in enumerate(sources.card_gib)
        ]

    @staticmethod
    def _utilization_shift(sources: MemorySources, calibration: Calibration) -> list[float]:
        before = calibration.gpu_memory_utilization
        if before is None or before == sources.utilization or len(sources.card_gib) != sources.stages:
            return [0.0] * sources.stages
        return [(sources.utilization - before) * gib * GIB for gib in sources.card_gib]


def _same_shape(calibration: Calibration, sources: MemorySources) -> bool:
    return len(calibration.partition) == sources.stages and calibration.tensor in (None, sources.tensor)


def _overheads(sources: MemorySources, weights: StageWeights | None) -> tuple[float, float] | None:
    """Bytes per card that are neither weights nor KV: on a stage before the last, and on the last; None: not known."""
    if sources.overhead_gib is not None:
        return sources.overhead_gib * GIB, sources.overhead_gib * GIB
    calibration = sources.calibration
    if calibration is None or weights is None or not sources.card_gib:
        return None
    utilization = calibration.gpu_memory_utilization or sources.utilization
    budget = min(sources.card_gib) * GIB * utilization
    found, start = [], 0
    for count, available in zip(calibration.partition, calibration.available_gib, strict=True):
        held = available * GIB + weights.stage_bytes(start, start + count) + sources.workspace_bytes
        found.append(max(0.0, budget - held))
        start += count
    return found[0], found[-1]


def even_cards(card_gib: Sequence[float], tensor: int, stages: int) -> tuple[float, ...]:
    """Memory per card of each stage from all cards in order: the smallest of the stage's; empty when too few."""
    if len(card_gib) < tensor * stages:
        return ()
    return tuple(min(card_gib[stage * tensor : (stage + 1) * tensor]) for stage in range(stages))
