"""Sizes of a model that tensor parallelism must divide; each may be absent from a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from shardwright.connect.decode import LARGEST
from shardwright.facts.positions import Positions, positions_of

_LANGUAGE_KEYS = ("text_config", "language_config", "llm_config")
_MLA_TYPES = frozenset({"glm_moe_dsa", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "kimi_k2"})
_MLA_ARCHITECTURES = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "GlmMoeDsaForCausalLM",
    }
)
_INDEX_NUMBERS = ("index_topk_freq", "index_skip_topk_offset")
# ModelOpt's checkpoints need not name it, vLLM quantization/modelopt.py.
_NVFP4_GROUP = 16
_FP4_METHODS = frozenset({"mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8"})


class Quantisation(Struct, frozen=True):
    """How weights are stored. `group_size`: input elements that share a scale; `block`: (output, input) elements.

    `ignored` holds the module patterns that stay unquantised.
    """

    method: str
    group_size: int | None = None
    block: tuple[int, int] | None = None
    fp4_experts: bool = False
    kv_cache_dtype: str | None = None
    ignored: tuple[str, ...] = ()


class ModelShape(Struct, frozen=True):
    """Element counts of a whole model, from its (language model's) config; None where the config is silent."""

    source: str
    architecture: str = ""
    model_type: str = ""
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    mla: bool = False
    vocabulary: int | None = None
    positions: Positions | None = None
    mtp_layers: int | None = None
    linear_heads: tuple[int, ...] = ()
    """Heads of linear-attention layers, of keys and of values."""
    intermediate: int | None = None
    moe_intermediate: int | None = None
    shared_intermediate: int | None = None
    experts: int | None = None
    all_layers_moe: bool = False
    full_attention: tuple[bool, ...] = ()
    """Per layer, whether it is a full-attention layer; empty where all are."""
    quantisation: Quantisation | None = None
    null_keys: tuple[str, ...] = ()
    """Index-sharing keys that the config gives as a literal null."""
    index_overrides: tuple[str, ...] = ()
    """Index-sharing keys that `hf_overrides` sets, with their values where these are numbers."""


def model_shape(config: Mapping[str, Any], source: str, overrides: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape of a config.json with `hf_overrides` applied. Values of the wrong type read as absent."""
    merged = merge_overrides(config, overrides)
    text = language_config(merged)
    architectures = merged.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    model_type = str(text.get("model_type") or "")
    layers = _whole(text, "num_hidden_layers", "n_layer")
    moe = _whole(text, "moe_intermediate_size")
    experts = _whole(text, "n_routed_experts", "num_experts", "num_local_experts")
    # Mixtral-like models name the width of an expert intermediate_size.
    if experts and moe is None:
        moe = _whole(text, "intermediate_size")
    mla = model_type in _MLA_TYPES or architecture in _MLA_ARCHITECTURES or _whole(text, "kv_lora_rank") is not None
    return ModelShape(
        source=source,
        architecture=architecture,
        model_type=model_type,
        layers=layers,
        heads=_whole(text, "num_attention_heads", "n_head"),
        kv_heads=None if mla else _whole(text, "num_key_value_heads"),
        mla=mla,
        vocabulary=_whole(text, "vocab_size"),
        positions=positions_of(text),
        mtp_layers=_whole(text, "num_nextn_predict_layers"),
        linear_heads=tuple(
            heads for key in ("linear_num_key_heads", "linear_num_value_heads") if (heads := _whole(text, key))
        ),
        intermediate=_whole(text, "intermediate_size"),
        moe_intermediate=moe,
        shared_intermediate=_shared(text, moe),
        experts=experts,
        all_layers_moe=bool(experts) and not _has_dense_layers(text),
        full_attention=_full_attention(text, layers),
        quantisation=_quantisation(merged, text),
        null_keys=tuple(key for key in _INDEX_NUMBERS if key in text and text[key] is None),
        index_overrides=_index_overrides(overrides or {}),
    )


def language_config(merged: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model, in the engine's search order, over the top level."""
    nested = next((merged[key] for key in _LANGUAGE_KEYS if isinstance(merged.get(key), Mapping)), None)
    thinker = merged.get("thinker_config")
    if nested is None and isinstance(thinker, Mapping) and isinstance(thinker.get("text_config"), Mapping):
        nested = thinker["text_config"]
    return {**merged, **nested} if nested is not None else merged


def _index_overrides(overrides: Mapping[str, Any]) -> tuple[str, ...]:
    nested = overrides.get("text_config")
    given = {**overrides, **nested} if isinstance(nested, Mapping) else overrides
    numbers = [f"{key}={given[key]}" for key in _INDEX_NUMBERS if given.get(key) is not None]
    return (*numbers, *(key for key in ("index_topk_pattern", "indexer_types") if given.get(key) is not None))


def merge_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """A config.json with `hf_overrides` applied; nested maps merge one level deep, as in the engine."""
    merged = dict(config)
    for key, value in (overrides or {}).items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _whole(config: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST:
            return value
    return None


def _shared(text: Mapping[str, Any], moe: int | None) -> int | None:
    given = _whole(text, "shared_expert_intermediate_size", "shared_intermediate_size", "shared_intermediate")
    if given:
        return given
    count = _whole(text, "n_shared_experts", "num_shared_experts")
    return count * moe if count and moe else None


def _has_dense_layers(text: Mapping[str, Any]) -> bool:
    if _whole(text, "first_k_dense_replace", "first_k_dense"):
        return True
    only = text.get("mlp_only_layers")
    step = _whole(text, "decoder_sparse_step")
    return bool(only) or (step is not None and step > 1)


def _full_attention(text: Mapping[str, Any], layers: int | None) -> tuple[bool, ...]:
    """Which layers attend over all tokens, in models that mix them with linear attention."""
    if layers is None:
        return ()
    types = text.get("layer_types")
    if isinstance(types, list) and len(types) == layers and any("linear" in str(kind) for kind in types):
        return tuple("linear" not in str(kind) for kind in types)
    interval = _whole(text, "full_attention_interval")
    if interval is not None and interval > 1:
        return tuple((layer + 1) % interval == 0 for layer in range(layers))
    return ()


def _quantisation(merged: Mapping[str, Any], text: Mapping[str, Any]) -> Quantisation | None:
    found = text.get("quantization_config") or merged.get("quantization_config") or text.get("compression_config")
    settings: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    fp4 = str(text.get("expert_dtype") or settings.get("expert_dtype") or "") == "fp4"
    block = _block(settings.get("weight_block_size") or text.get("weight_block_size"))
    group = _group_size(settings) or _group_size(text)
    if group is None and str(settings.get("quant_algo") or "").upper() == "NVFP4":
        group = _NVFP4_GROUP
    method = str(settings.get("quant_method") or settings.get("quant_algo") or "")
    if not (settings or fp4 or block or group):
        return None
    ignored = settings.get("ignore") or settings.get("modules_to_not_convert") or settings.get("ignored_layers") or ()
    return Quantisation(
        method=method,
        group_size=group,
        block=block,
        fp4_experts=fp4 or method in _FP4_METHODS,
        kv_cache_dtype=_kv_dtype(settings),
        ignored=tuple(str(item) for item in ignored) if isinstance(ignored, list | tuple) else (),
    )


def _kv_dtype(settings: Mapping[str, Any]) -> str | None:
    """The cache format that the checkpoint was calibrated for; ModelOpt nests its settings, or not."""
    inner = settings.get("quantization")
    for part in (inner if isinstance(inner, Mapping) else {}, settings):
        found = part.get("kv_cache_scheme") or part.get("kv_cache_quant_algo")
        if isinstance(found, Mapping):
            return {8: "fp8", 4: "nvfp4"}.get(_whole(found, "num_bits") or 0)
        if found:
            return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(str(found).upper())
    return None


def _group_size(settings: Mapping[str, Any]) -> int | None:
    size = _whole(settings, "group_size", "q_group_size")
    groups = settings.get("config_groups")
    if size is None and isinstance(groups, Mapping):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping) and _whole(weights, "group_size"):
                size = _whole(weights, "group_size")
                break
    return size if size is not None and size > 0 else None


def _block(value: Any) -> tuple[int, int] | None:
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(item, int) and item > 0 for item in value)
    ):
        return value[0], value[1]
    return None
