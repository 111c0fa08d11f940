"""Sizes of a model that virtual tensor parallelism pads, and what its backends align to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from shardwright.errors import DeployError
from shardwright.facts.virtual_tp import SIDECAR_KEY, VtpTable

PADDED_KEYS = {
    "attention_heads": "num_attention_heads",
    "output_groups": "o_groups",
    "routed_intermediate": "moe_intermediate_size",
}
"""The axes that a sidecar's config.json pads, and its key for each. The vocabulary is never padded there."""


class ModelSizes(Struct, frozen=True):
    """The sizes of a padded-kind model, from its config.json. `fp8_block` is 0 where linears are not block-FP8."""

    source: str
    model_type: str
    layers: int
    draft_layers: int
    hidden: int
    heads: int
    head_dim: int
    groups: int
    query_rank: int
    output_rank: int
    experts: int
    routed: int
    shared_experts: int
    vocabulary: int
    expert_format: str
    """`fp4`, `fp8` or `bf16`."""
    fp8_block: int


class Alignment(Struct, frozen=True):
    """What the model family and the chosen backends align to; `heads` empty means any count of heads per rank."""

    routed: int
    shared: int
    vocabulary: int
    heads: tuple[int, ...]
    kernel_intermediate: int


def model_sizes(config: Mapping[str, Any], source: str) -> ModelSizes:
    """Sizes of the model that a config.json describes. DeployError names the key that is missing or wrong.

    A sidecar's config gives the sizes of the checkpoint that it was made for, not its own padded ones.
    """
    config = original_config(config)
    quantization = config.get("quantization_config")
    block = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    sizes = ModelSizes(
        source=source,
        model_type=str(config.get("model_type", "")),
        layers=_size(config, "num_hidden_layers", source),
        draft_layers=_size(config, "num_nextn_predict_layers", source, default=0),
        hidden=_size(config, "hidden_size", source),
        heads=_size(config, "num_attention_heads", source),
        head_dim=_size(config, "head_dim", source),
        groups=_size(config, "o_groups", source),
        query_rank=_size(config, "q_lora_rank", source),
        output_rank=_size(config, "o_lora_rank", source),
        experts=_size(config, "n_routed_experts", source),
        routed=_size(config, "moe_intermediate_size", source),
        shared_experts=_size(config, "n_shared_experts", source, default=0),
        vocabulary=_size(config, "vocab_size", source),
        expert_format=str(config.get("expert_dtype", "fp4" if quantization else "bf16")),
        fp8_block=int(block[0]) if isinstance(block, list) and block and isinstance(block[0], int) else 0,
    )
    if sizes.heads % sizes.groups:
        raise DeployError(f"{source}: {sizes.heads} attention heads do not form {sizes.groups} equal output groups")
    return sizes


def original_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The checkpoint's sizes of a sidecar's config; any other config as it is."""
    entry = config.get(SIDECAR_KEY)
    if not isinstance(entry, Mapping) or not isinstance(entry.get("axes"), Mapping):
        return config
    sizes = {key: entry["axes"].get(axis, [None])[0] for axis, key in PADDED_KEYS.items()}
    return {key: value for key, value in {**config, **sizes}.items() if key != SIDECAR_KEY}


def alignment_for(table: VtpTable, model_type: str, attention: str, moe: str, vllm: str) -> Alignment:
    """The alignment of one combination. DeployError for a model or a backend that the table does not hold."""
    family = table.family(model_type)
    if family is None:
        raise DeployError(
            f"virtual tensor parallelism is not worked out for the model type {model_type!r}",
            why="its tensors, their units and their loaders were never checked",
            fix=f"known: {', '.join(row.model_type for row in table.families)}",
        )
    attention_row, moe_row = table.attention(attention, vllm), table.moe(moe, vllm)
    if attention_row is None or moe_row is None:
        unknown = f"attention backend {attention}" if attention_row is None else f"MoE backend {moe}"
        raise DeployError(
            f"no alignment is known for the {unknown} of vLLM {vllm}",
            fix="add its row, with the source, to configs/engines/vtp_alignment.yaml",
        )
    return Alignment(
        family.routed_intermediate,
        family.shared_intermediate,
        family.vocabulary,
        attention_row.heads,
        moe_row.intermediate,
    )


def _size(config: Mapping[str, Any], key: str, source: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < (1 if default is None else 0):
        found = "missing" if value is None else f"{value!r}"
        raise DeployError(
            f"{source}: {key} is {found}, expected a whole number",
            why="virtual tensor parallelism pads heads, output groups, experts and vocabulary; it needs their sizes",
            fix="name a DeepSeek-V4 checkpoint, or a layout that serves one",
        )
    return value
