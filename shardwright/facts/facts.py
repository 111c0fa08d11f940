"""All facts that the gates may look at; None means that this machine cannot tell."""

from __future__ import annotations

from msgspec import Struct

from shardwright.facts.checkpoint import CheckpointFacts
from shardwright.facts.host import Gpu
from shardwright.facts.model import ModelFacts


class Facts(Struct, frozen=True):
    model: ModelFacts | None = None
    checkpoint: CheckpointFacts | None = None
    gpus: tuple[Gpu, ...] | None = None
