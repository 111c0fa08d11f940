"""Facts of a checkpoint's files: which tensors it carries."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from shardwright.errors import DeployError
from shardwright.facts.safetensors import read_headers

_INDEX_FILE = "model.safetensors.index.json"


class CheckpointFacts(Struct, frozen=True):
    """The names of all tensors, from the checkpoint's index file or the header of its only shard."""

    source: str
    tensors: frozenset[str]

    def has_indexer(self, layer: int) -> bool:
        """Whether the checkpoint carries indexer weights of a layer."""
        prefix = f"model.layers.{layer}.self_attn.indexer."
        return any(name.startswith(prefix) for name in self.tensors)


def read_checkpoint(directory: Path, shown: str) -> CheckpointFacts | None:
    """Tensor names of a checkpoint on this host, read without its weights; None where there is none."""
    index, single = directory / _INDEX_FILE, directory / "model.safetensors"
    try:
        if index.is_file():
            weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
            if not isinstance(weight_map, dict):
                raise DeployError(f"{shown}/{_INDEX_FILE} has no weight_map")
            return CheckpointFacts(f"{shown}/{_INDEX_FILE}", frozenset(weight_map))
        if single.is_file():
            shard = read_headers(single, f"{shown}/model.safetensors")
            return CheckpointFacts(f"{shown}/model.safetensors", frozenset(tensor.name for tensor in shard.tensors))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DeployError(f"{shown}: the checkpoint index cannot be read: {error}") from None
    return None
