"""Bytes of weights per layer from the headers of a checkpoint on this host."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright.errors import DeployError, UsageError
from shardwright.facts.packed import packed_linears
from shardwright.facts.safetensors import TensorHeader, read_headers, tensor_bytes
from shardwright.facts.weights import LayerBytes, WeightFacts

_INDEX_FILE = "model.safetensors.index.json"
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.", re.ASCII)
# Weights that every tensor rank holds whole: latent down-projections, the indexer ("no tensor parallel, just
# replicated", vLLM deepseek_v2.py), the router, norms, and what an MTP layer has beside its block.
_REPLICATED = re.compile(
    r"\.(q_a_proj|kv_a_proj_with_mqa|fused_qkv_a_proj|indexer|gate|eh_proj|e_score_correction_bias)(\.|$)|norm"
)
_KEY_VALUE = re.compile(r"\.(k_proj|v_proj)\.")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings)\.")
_HEAD = re.compile(r"(^|\.)(lm_head|shared_head\.head)\.")


def read_weights(directory: Path, shown: str, num_layers: int) -> WeightFacts | None:
    """Bytes of a checkpoint on this host from its headers alone; None where it has no safetensors files.

    Raises DeployError for a shard that is missing or not whole.
    """
    shards = _shards(directory, shown)
    if not shards:
        return None
    tensors: list[TensorHeader] = []
    read = 0
    for shard in shards:
        header = read_headers(directory / shard, f"{shown}/{shard}")
        tensors += header.tensors
        read += header.read_bytes
    return _sorted_out(tensors, num_layers, f"{shown}: headers of {len(shards)} safetensors files", read)


def given_weights(headers: Mapping[str, Any], num_layers: int, source: str) -> WeightFacts | None:
    """Bytes from a map of tensor names to `{dtype, shape}`, as in the headers; None where it only has names."""
    tensors = []
    for name, entry in headers.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("shape"), list):
            return None
        size = tensor_bytes(str(entry.get("dtype")), entry["shape"])
        if size is None:
            raise UsageError(f"{source}: checkpoint.tensors.{name}: dtype and shape do not read")
        tensors.append(TensorHeader(name, str(entry["dtype"]), tuple(entry["shape"]), size))
    return _sorted_out(tensors, num_layers, source, 0) if tensors else None


def _shards(directory: Path, shown: str) -> list[str]:
    index = directory / _INDEX_FILE
    if not index.is_file():
        return ["model.safetensors"] if (directory / "model.safetensors").is_file() else []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DeployError(f"{shown}/{_INDEX_FILE} does not read") from None
    missing = [name for name in names if not isinstance(name, str) or not (directory / name).is_file()]
    if missing:
        raise DeployError(
            f"{shown}: {len(missing)} of {len(names)} shards are missing, the first is {missing[0]}",
            why="the engine would find out minutes into the start",
            fix="finish the download",
        )
    return names


def _sorted_out(tensors: Sequence[TensorHeader], num_layers: int, source: str, read: int) -> WeightFacts:
    sharded, replicated, key_value = ([0] * (num_layers + 1) for _ in range(3))
    embedding = head = other = 0
    packed = packed_linears((tensor.name, tensor.shape) for tensor in tensors)
    for tensor in tensors:
        found = _LAYER.search(tensor.name)
        layer = min(int(found[1]), num_layers) if found and not _outside(tensor.name) else None
        if _EMBEDDING.search(tensor.name):
            # An MTP layer's own copy is not counted: the engine shares the target's, or copies it, see plan.weights.
            embedding += tensor.size_bytes if layer is None else 0
        elif _HEAD.search(tensor.name):
            head += tensor.size_bytes if layer is None else 0
        elif layer is None:
            other += tensor.size_bytes
        elif _REPLICATED.search(tensor.name):
            replicated[layer] += tensor.size_bytes
        elif _KEY_VALUE.search(tensor.name):
            key_value[layer] += tensor.size_bytes
        else:
            sharded[layer] += tensor.size_bytes
    layers = tuple(LayerBytes(*parts) for parts in zip(sharded, replicated, key_value, strict=True))
    return WeightFacts(source, layers[:num_layers], layers[num_layers], embedding, head, other, read, packed)


def _outside(name: str) -> bool:
    """Layers of a vision or audio tower, which the pipeline does not split."""
    return any(part in name for part in ("vision", "visual", "audio", "encoder."))
