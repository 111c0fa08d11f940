"""The compute capabilities of the cards that a deployment runs on. No gate; gates ask it."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.options import whole_number
from shardwright.resolve.deployment import Deployment


def capabilities_of(deployment: Deployment, facts: Facts) -> tuple[tuple[str, ...], str]:
    """The distinct compute capabilities of the cards, and where they are known from."""
    found = tuple(sorted({gpu.compute_capability for gpu in facts.gpus or () if gpu.compute_capability}))
    if found or deployment.hardware is None:
        return found, "the cards of this host"
    return (deployment.hardware.compute_capability,), "hardware: of the layout"


def major_of(capability: str) -> int | None:
    """The major number of a compute capability; None where it does not read."""
    return whole_number(capability.partition(".")[0])
