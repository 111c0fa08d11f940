"""The prefill workspace of sparse-MLA models: one buffer per card, as long as max_model_len, beside the KV cache."""

from __future__ import annotations

from shardwright.facts.attention import AttentionFacts
from shardwright.facts.versions import version_in

_FACTOR, _LONG_FACTOR = 5, 2
_LONG = 256 * 1024
# Formats that a prefill unpacks to bfloat16 before it attends.
_UNPACKED = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})
# Indexer keys per token of the workspace: 1152 bytes of an unpacked latent over 132 of a key, rounded down.
_KEYS_PER_TOKEN = 8


def default_factor(version: str, max_model_len: int | None) -> int:
    """How many times max_model_len the workspace holds, where the layout is silent.

    5 before 0.32; from there attention_config.sparse_mla_prefill_workspace_factor, by default 2 above 256 Ki tokens
    (vLLM config/vllm.py VllmConfig.__post_init__).
    """
    long = max_model_len is not None and max_model_len > _LONG
    return _LONG_FACTOR if long and version_in(version, ">=0.32") else _FACTOR


def prefill_workspace_bytes(
    attention: AttentionFacts | None, kv_dtype: str, max_model_len: int | None, factor: int
) -> int:
    """Bytes that a card holds for prefills; 0 where the model has no sparse indexer or the length is not known.

    The indexer gathers its keys there (vLLM v1/attention/backends/mla/indexer.py get_max_prefill_buffer_size), and a
    packed cache is unpacked there (flashmla_sparse.py get_prefill_workspace_size); both take the same memory in turn
    (v1/worker/workspace.py), so the larger counts.
    """
    if attention is None or attention.kind != "sparse-mla" or max_model_len is None:
        return 0
    indexer_bytes = attention.index_head_dim + attention.index_head_dim // 128 * 4
    gathered = _KEYS_PER_TOKEN * indexer_bytes
    unpacked = (attention.latent_dim + attention.rope_dim) * 2
    return factor * max_model_len * (max(gathered, unpacked) if kv_dtype in _UNPACKED else gathered)
