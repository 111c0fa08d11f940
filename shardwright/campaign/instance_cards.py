"""Which cards of this host belong to a deployment, as far as its layout names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.facts.host import Gpu
from shardwright.gates.options import env_of, value_of, whole_number
from shardwright.resolve.deployment import Deployment


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


def named_cards(deployment: Deployment) -> tuple[int, ...] | None:
    """Numbers on the host of the cards that a layout names; None where it names none, or names them by UUID.

    A container numbers its cards from 0, so what is chosen inside is a choice among those that were passed in.
    """
    passed = _passed(deployment)
    inner = _numbers(value_of(deployment, "--device-ids") or _variable(deployment, "CUDA_VISIBLE_DEVICES"))
    if passed is None or inner is None:
        return passed if inner is None else inner
    return tuple(passed[number] for number in inner if number < len(passed))


def _passed(deployment: Deployment) -> tuple[int, ...] | None:
    """Host numbers of the cards that a container gets; None for all of them, and for an engine without container."""
    if deployment.runtime != "docker" or deployment.container.gpus is None:
        return None
    gpus = deployment.container.gpus.strip("'\"")
    count = whole_number(gpus)
    # Docker turns a count into the first so many cards.
    return tuple(range(count)) if count is not None else _numbers(gpus.removeprefix("device="))


def _variable(deployment: Deployment, name: str) -> str | None:
    pair = env_of(deployment, name)
    return None if pair is None else pair.value


def _numbers(text: str | None) -> tuple[int, ...] | None:
    found = [whole_number(part.strip()) for part in (text or "").split(",")]
    numbers = [number for number in found if number is not None]
    return tuple(numbers) if len(numbers) == len(found) else None
