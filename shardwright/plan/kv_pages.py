"""Bytes that one token takes in the KV cache of one layer, by the engine's own rule."""

from __future__ import annotations

from msgspec import Struct

from shardwright.facts.attention import AttentionFacts
from shardwright.facts.versions import version_in

_PLAIN = {"float16": 2, "half": 2, "bfloat16": 2, "float32": 4, "float": 4}
_FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
_NVFP4_DS_MLA_BYTES = 352
_SPARSE_BLOCK = 64
_CUDA_BLOCK = 16
_MLA_CUDA_BLOCK = 64
_CPU_BLOCK = 128
_MLA_CPU_BLOCK = 16


class UnknownPagesError(ValueError):
    """The page size of this model is not known here; the text says why."""


class PageRule(Struct, frozen=True):
    """Bytes per token on one rank: of one attention layer, and of one indexer (0 where the model has none)."""

    layer_bytes: int
    indexer_bytes: int
    block_tokens: int
    sliding: tuple[bool, ...] = ()
    window: int = 0


class CacheSettings(Struct, frozen=True):
    """What the deployment says of its KV cache. `capability_major` is None where the cards are not known."""

    version: str
    platform: str
    kv_dtype: str = "auto"
    dtype: str = "auto"
    block_tokens: int | None = None
    tensor: int = 1
    capability_major: int | None = None
    hybrid_manager: bool = True
    """Whether sliding layers keep their window only; off, the engine allocates them like full ones."""


def page_rule(attention: AttentionFacts | None, settings: CacheSettings) -> PageRule:
    """The rule for one model and deployment. Raises UnknownPagesError where none is known.

    vLLM v1/kv_cache_interface.py (AttentionSpec, MLAAttentionSpec) and layers/attention/mla_attention.py. Tensor
    parallelism divides KV heads, down to one, and never a latent cache, which every rank holds whole.
    """
    if attention is None or attention.kind == "unknown":
        reason = attention.reason if attention else "the model's config is not known here"
        raise UnknownPagesError(reason)
    block = settings.block_tokens or _default_block(attention.kind, settings.platform)
    if attention.kind == "sparse-mla":
        return PageRule(_sparse_bytes(attention, settings), _indexer_bytes(attention.index_head_dim), block)
    if attention.kind == "mla":
        latent = attention.latent_dim + attention.rope_dim
        return PageRule(latent * _element_bytes(settings), 0, block)
    heads = max(1, attention.num_kv_heads // settings.tensor)
    size = heads * 2 * attention.head_dim * _element_bytes(settings)
    if not settings.hybrid_manager and not all(attention.sliding):
        return PageRule(size, 0, block)
    return PageRule(size, 0, block, attention.sliding, attention.window)


def _sparse_bytes(attention: AttentionFacts, settings: CacheSettings) -> int:
    latent, rope = attention.latent_dim, attention.rope_dim
    packed = latent + latent // 128 * 4 + rope * 2
    kind = settings.kv_dtype
    if kind == "fp8_ds_mla":
        return packed
    if kind == "nvfp4_ds_mla":
        if not version_in(settings.version, ">=0.30"):
            raise UnknownPagesError(f"vLLM {settings.version} has no nvfp4_ds_mla")
        return _NVFP4_DS_MLA_BYTES
    if settings.capability_major == 12 and kind in ("auto", "fp8", "fp8_e4m3"):
        return packed
    if kind in _FP8:
        if settings.capability_major == 9:
            return packed
        raise UnknownPagesError(f"kv_cache_dtype {kind} is stored as the attention backend decides; name fp8_ds_mla")
    return (latent + rope) * _element_bytes(settings)


def _indexer_bytes(head_dim: int) -> int:
    """One fp8 key per token and a float32 scale for every 128 of its elements."""
    return head_dim + head_dim // 128 * 4


def _element_bytes(settings: CacheSettings) -> int:
    kind = settings.kv_dtype
    if kind in _FP8:
        return 1
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind != "auto":
        raise UnknownPagesError(f"the layout of kv_cache_dtype {kind} is not known here")
    # `--dtype auto` serves a float32 checkpoint in 16 bits.
    return _PLAIN.get(settings.dtype, 2)


def _default_block(kind: str, platform: str) -> int:
    if platform == "cpu":
        return _CPU_BLOCK if kind == "gqa" else _MLA_CPU_BLOCK
    return {"sparse-mla": _SPARSE_BLOCK, "mla": _MLA_CUDA_BLOCK}.get(kind, _CUDA_BLOCK)
