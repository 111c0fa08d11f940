"""Memory of the cards of this host, whoever uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.facts.host import Gpu


@dataclass(frozen=True)
class CardMemory:
    """One card by the number that the driver gives it, and its memory in GiB, whoever uses it."""

    number: int
    used_gib: float
    total_gib: float


def card_memory(gpus: Sequence[Gpu]) -> tuple[CardMemory, ...]:
    """Every card whose free memory is known."""
    return tuple(
        CardMemory(number, gpu.memory_gib - gpu.free_gib, gpu.memory_gib)
        for number, gpu in enumerate(gpus)
        if gpu.free_gib is not None
    )
