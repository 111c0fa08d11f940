"""All facts that the gates may look at; None means that this machine cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from shardwright.facts.checkpoint import CheckpointFacts
from shardwright.facts.engine import EngineFacts
from shardwright.facts.host import Gpu, Host, LinkKind
from shardwright.facts.model import ModelFacts
from shardwright.facts.packed import PackedLinear
from shardwright.facts.shape import ModelShape
from shardwright.facts.virtual_tp import VirtualTpFacts
from shardwright.facts.weights import WeightFacts


class Facts(Struct, frozen=True):
    """`shape` holds what parallelism must divide, and may be known where `model` is not.

    `nodes`: what each host of a multi-node start reports of itself. `log`: the text of an earlier start's log.
    `packed`: widths of packed linear layers.
    """

    model: ModelFacts | None = None
    checkpoint: CheckpointFacts | None = None
    gpus: tuple[Gpu, ...] | None = None
    shape: ModelShape | None = None
    engine: EngineFacts | None = None
    links: LinkKind | None = None
    host: Host = Host()
    nodes: tuple[Mapping[str, Any], ...] = ()
    log: str | None = None
    weights: WeightFacts | None = None
    virtual_tp: VirtualTpFacts | None = None
    packed: tuple[PackedLinear, ...] = ()
