"""The `speculative:` key of a layout: the method, its draft model, and the engine's further settings for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from shardwright.connect.decode import Section


class Speculative(Struct, frozen=True):
    """What was asked for. `model` is the draft's path, as `model.path` is the target's; None where it needs none.

    `options`: further keys of the engine's speculative config, in the layout's order.
    """

    method: str = "none"
    draft_tokens: int = 3
    model: str | None = None
    options: tuple[tuple[str, Any], ...] = ()


def _text(section: Section, key: str) -> str:
    return section.text(key)


def _flag(section: Section, key: str) -> bool:
    return section.boolean(key)


def _whole(section: Section, key: str) -> int:
    return section.integer(key, minimum=0)


def _positive(section: Section, key: str) -> int:
    return section.integer(key, minimum=1)


def _number(section: Section, key: str) -> float:
    return section.number(key)


def _list(section: Section, key: str) -> list[Any]:
    value = section.any(key)
    if not isinstance(value, list):
        raise section.error(key, "expected a list")
    return value


def _map(section: Section, key: str) -> Mapping[str, Any]:
    return section.free_map(key)


# The settings of vLLM config/speculative.py SpeculativeConfig, 0.28 to 0.33, but for those that it fills in itself;
# whether one version has a key is judged by the gate engine-flags.
OPTIONS: Mapping[str, Callable[[Section, str], Any]] = {
    "draft_tensor_parallel_size": _positive,
    "max_model_len": _positive,
    "revision": _text,
    "code_revision": _text,
    "quantization": _text,
    "kv_cache_dtype": _text,
    "attention_backend": _text,
    "moe_backend": _text,
    "draft_lm_head_quantization": _text,
    "draft_load_config": _map,
    "draft_sample_method": _text,
    "rejection_sample_method": _text,
    "enforce_eager": _flag,
    "parallel_drafting": _flag,
    "enable_adaptive_verification": _flag,
    "index_share_for_mtp_iteration": _flag,
    "disable_padded_drafter_batch": _flag,
    "disable_eagle_block_drop": _flag,
    "disable_lookahead_block_hashes": _flag,
    "use_local_argmax_reduction": _flag,
    "use_heterogeneous_vocab": _flag,
    "num_speculative_tokens_per_batch_size": _list,
    "prompt_lookup_min": _positive,
    "prompt_lookup_max": _positive,
    "suffix_decoding_max_tree_depth": _positive,
    "suffix_decoding_max_cached_requests": _whole,
    "suffix_decoding_max_spec_factor": _number,
    "suffix_decoding_min_token_prob": _number,
    "synthetic_acceptance_rates": _list,
    "synthetic_acceptance_length": _number,
    "dspark_draft_topk": _positive,
    "xpress_topc": _whole,
    "fly_window_size": _positive,
    "fly_entropy_threshold": _number,
    "fly_entropy_top_k": _positive,
}


def decode_speculative(section: Section) -> Speculative:
    """Decode `speculative:`. Raises UsageError naming file, line and the nearest known key."""
    method = section.text("method", "none") or "auto"
    tokens = section.integer("num_speculative_tokens", 3, minimum=1)
    model = section.optional_text("model")
    if model is not None and not model.strip():
        raise section.error("model", "the value is empty")
    if model is not None and not section.has("method"):
        raise section.error("model", "a draft model without a method", fix="write method: eagle3, or whatever it is")
    given = {key: read(section, key) for key, read in OPTIONS.items() if section.has(key)}
    section.finish()
    return Speculative(method, tokens, model, tuple((key, given[key]) for key in section.data if key in given))
