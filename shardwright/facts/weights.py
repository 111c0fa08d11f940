"""Bytes of weights per layer, and how a model file of this project declares them."""

from __future__ import annotations

from msgspec import Struct

from shardwright.connect.decode import Section
from shardwright.facts.packed import PackedLinear

_MIB = 1 << 20


class LayerBytes(Struct, frozen=True):
    """Bytes of one layer, split by how tensor parallelism treats them."""

    sharded: int = 0
    replicated: int = 0
    key_value: int = 0
    """Key and value projections: sharded by at most the number of KV heads."""

    @property
    def total(self) -> int:
        return self.sharded + self.replicated + self.key_value


class WeightFacts(Struct, frozen=True):
    """All bytes of a checkpoint. `head` is 0 where the head is tied to the embedding."""

    source: str
    layers: tuple[LayerBytes, ...]
    mtp: LayerBytes
    embedding: int
    head: int
    other: int
    """What belongs to no layer: towers, projectors, the final norm."""
    read_bytes: int = 0
    """Bytes that were read from disk to know this."""
    packed: tuple[PackedLinear, ...] = ()

    @property
    def total(self) -> int:
        layers = sum(layer.total for layer in self.layers)
        return layers + self.mtp.total + self.embedding + self.head + self.other


def declared_weights(section: Section, source: str) -> WeightFacts:
    """The `weights:` map of a model file: MiB of the whole model, and of each layer what every rank holds.

    Raises UsageError naming file, line and key.
    """
    replicated = _bytes(section, "replicated_mib", 0.0)
    layers: list[LayerBytes] = []
    for run in section.sections("layers"):
        size = _bytes(run, "mib")
        layers += [LayerBytes(size - replicated, replicated)] * run.integer("count", minimum=1)
        run.finish()
    mtp = _bytes(section, "mtp_mib", 0.0)
    facts = WeightFacts(
        source=source,
        layers=tuple(layers),
        mtp=LayerBytes(mtp - replicated, replicated) if mtp else LayerBytes(),
        embedding=_bytes(section, "embedding_mib", 0.0),
        head=_bytes(section, "head_mib", 0.0),
        other=0,
    )
    section.finish()
    return facts


def _bytes(section: Section, key: str, *default: float) -> int:
    return round(section.number(key, *default) * _MIB)
