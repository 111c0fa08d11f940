"""What a model's config says of its KV cache: heads, latent sizes, sliding windows; or why it does not say enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from shardwright.connect.decode import LARGEST

AttentionKind = Literal["gqa", "mla", "sparse-mla", "unknown"]

# Keys of models whose cache is more than full, sliding or latent attention per layer.
_STATEFUL_KEYS = (
    "compress_ratios",
    "num_kv_shared_layers",
    "attention_chunk_size",
    "full_attention_interval",
    "hybrid_override_pattern",
    "layers_block_type",
    "attn_type_list",
    "linear_attn_config",
    "mamba_d_state",
    "ssm_state_size",
    "ssm_cfg",
    "block_configs",
    "cla_share_factor",
)
_LAYER_KINDS = {"full_attention": False, "sliding_attention": True, "full": False, "sliding": True}
# Models whose `sliding_window`, without a list of layer types, holds for every layer.
_ALL_SLIDING_TYPES = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})
# Every n-th layer is full, the others slide, with a window of so many tokens: what the config classes of these models
# fill in where config.json is silent.
_INTERLEAVED = {"gemma2": (2, 4096), "gemma3_text": (6, 4096), "cohere2": (4, 4096), "gpt_oss": (2, 128)}
_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}


class AttentionFacts(Struct, frozen=True):
    """Sizes that decide a page of the KV cache. `reason` says why the kind is unknown."""

    kind: AttentionKind
    reason: str = ""
    num_kv_heads: int = 0
    head_dim: int = 0
    latent_dim: int = 0
    """MLA: kv_lora_rank; one latent vector per token serves all heads."""
    rope_dim: int = 0
    index_head_dim: int = 0
    sliding: tuple[bool, ...] = ()
    """Per layer, whether it keeps a window only; empty when no layer does."""
    window: int = 0
    hidden_size: int = 0
    active_params_per_layer: int = 0
    """Weights that one token passes in a MoE or dense layer, roughly; 0 when the config does not say."""
    head_params: int = 0


def attention_facts(config: Mapping[str, Any], num_layers: int, sparse: bool) -> AttentionFacts:
    """Attention of a (text) config.json; `sparse` where the engine runs it with a sparse-MLA backend."""
    whole = _Whole(config)
    common: dict[str, Any] = {
        "hidden_size": whole("hidden_size"),
        "active_params_per_layer": _active_params(whole),
        "head_params": whole("vocab_size") * whole("hidden_size"),
    }
    stateful = next((key for key in _STATEFUL_KEYS if config.get(key)), None)
    if stateful is not None:
        return AttentionFacts("unknown", f"its layers keep more than plain keys and values ({stateful})", **common)
    if whole("index_topk") and not sparse:
        return AttentionFacts("unknown", "sparse attention of an architecture without a page rule here", **common)
    if whole("kv_lora_rank") or sparse:
        return _latent(whole, sparse, common)
    return _grouped(config, whole, num_layers, common)


class _Whole:
    """Whole numbers of a config; 0 where a key is absent or something else."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def __call__(self, *keys: str) -> int:
        for key in keys:
            value = self._config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST:
                return value
        return 0


def _latent(whole: _Whole, sparse: bool, common: Mapping[str, Any]) -> AttentionFacts:
    latent, rope = whole("kv_lora_rank"), whole("qk_rope_head_dim")
    if sparse:
        # What the config classes of these architectures fill in where config.json is silent.
        latent, rope = latent or 512, rope or 64
    if not rope:
        return AttentionFacts("unknown", "kv_lora_rank without qk_rope_head_dim", **common)
    return AttentionFacts(
        "sparse-mla" if sparse else "mla",
        latent_dim=latent,
        rope_dim=rope,
        index_head_dim=whole("index_head_dim") or 128,
        **common,
    )


def _grouped(config: Mapping[str, Any], whole: _Whole, num_layers: int, common: Mapping[str, Any]) -> AttentionFacts:
    heads = whole("num_attention_heads")
    kv_heads = whole("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num") or heads
    head_dim = whole("head_dim") or (whole("hidden_size") // heads if heads else 0)
    if not kv_heads or not head_dim:
        return AttentionFacts("unknown", "the config names no KV heads or no head size", **common)
    sliding, window, reason = _sliding(config, whole, num_layers)
    if reason:
        return AttentionFacts("unknown", reason, **common)
    return AttentionFacts("gqa", num_kv_heads=kv_heads, head_dim=head_dim, sliding=sliding, window=window, **common)


def _sliding(config: Mapping[str, Any], whole: _Whole, num_layers: int) -> tuple[tuple[bool, ...], int, str]:
    """Per-layer windows, the window, and why they are not known."""
    kinds = config.get("layer_types")
    window = whole("sliding_window")
    if isinstance(kinds, list):
        unknown = sorted({str(kind) for kind in kinds} - set(_LAYER_KINDS))
        if unknown:
            return (), 0, f"layers of type {', '.join(unknown)}"
        flags = tuple(_LAYER_KINDS[str(kind)] for kind in kinds[:num_layers])
        if len(flags) != num_layers:
            return (), 0, f"layer_types names {len(flags)} of {num_layers} layers"
        if not any(flags):
            return (), 0, ""
        return (flags, window, "") if window else ((), 0, "sliding layers without a sliding_window")
    every, usual = _INTERLEAVED.get(str(config.get("model_type")), (0, 0))
    if "sliding_window" not in config:
        window = usual
    if not window or config.get("use_sliding_window") is False:
        return (), 0, ""
    pattern = whole("sliding_window_pattern") or every
    if pattern:
        return tuple((layer + 1) % pattern != 0 for layer in range(num_layers)), window, ""
    if config.get("model_type") in _ALL_SLIDING_TYPES:
        return (True,) * num_layers, window, ""
    return (), 0, "a sliding_window, but not which layers use it"


def dtype_bytes(name: str) -> int | None:
    """Bytes per element of an engine dtype; None for `auto` and names that are not plain."""
    return _DTYPE_BYTES.get(name)


def _active_params(whole: _Whole) -> int:
    hidden = whole("hidden_size")
    experts = whole("num_experts_per_tok")
    if experts:
        width = whole("moe_intermediate_size") * (experts + whole("n_shared_experts"))
    else:
        width = whole("intermediate_size")
    heads, latent = whole("num_attention_heads"), whole("kv_lora_rank")
    if not (hidden and width and heads):
        return 0
    if latent:
        query = whole("q_lora_rank") or hidden
        nope, rope, value = whole("qk_nope_head_dim"), whole("qk_rope_head_dim"), whole("v_head_dim")
        attention = query * (hidden + heads * (nope + rope)) + hidden * (latent + rope)
        attention += heads * (latent * (nope + value) + hidden * value)
    else:
        head_dim = whole("head_dim") or hidden // heads
        attention = hidden * head_dim * 2 * (heads + (whole("num_key_value_heads") or heads))
    return 3 * hidden * width + attention
