"""What the stock engine's backends for dense attention take, read in vLLM 0.28.0, 0.30.0, 0.32.0 and 0.33.0.

Sources: v1/attention/backends (supports_compute_capability, supported_kv_cache_dtypes, supports_combination,
get_supported_kernel_block_sizes, supports_sink, supports_dcp or before 0.30 can_return_lse_for_decode, and what the
constructors refuse), and platforms/cuda.py _get_backend_priorities.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from shardwright.facts.capability import Cards
from shardwright.facts.versions import READ

AttentionKind = Literal["gqa", "mla"]

_NATIVE = frozenset({"auto", "float16", "bfloat16"})
_PACKED = _NATIVE - {"float16"}
_FP8 = frozenset({"fp8", "fp8_e4m3"})
_FP8_ANY = _FP8 | {"fp8_e5m2"}
_PER_TOKEN = frozenset({"int4_per_token_head", "int8_per_token_head"})
_TURBO = frozenset({"turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"})
_SINCE_030 = ">=0.30,<0.34"
_ANY = Cards("0.0")
_NINE = Cards("9.0", "9.9")
_TEN = Cards("10.0", "10.9")
# Kernels in Triton compute in FP8 from here on.
_TRITON_FP8 = Cards("8.9")
_TWELVE = Cards("12.0", "12.1")


class DenseBackend(Struct, frozen=True):
    """Cards and KV formats of a backend; it may have several rows.

    `block`: the block size is a multiple of it. `sinks`: whether it takes attention sinks. `decode_context`: whether it
    takes decode context parallelism. `chosen`: whether the engine takes it unasked. `head_sizes`: those that it takes;
    empty where nothing but extremes is left out.
    """

    name: str
    kind: AttentionKind
    cards: Cards
    dtypes: frozenset[str]
    block: int = 16
    versions: str = READ
    sinks: bool = False
    decode_context: bool = False
    chosen: bool = True
    head_sizes: tuple[int, ...] = ()


def _flashinfer(cards: Cards, dtypes: frozenset[str], versions: str = READ, *, sinks: bool = False) -> DenseBackend:
    return DenseBackend(
        "FLASHINFER",
        "gqa",
        cards,
        dtypes,
        versions=versions,
        sinks=sinks,
        decode_context=True,
        head_sizes=(64, 128, 256, 512),
    )


DENSE_BACKENDS = (
    DenseBackend("FLASH_ATTN", "gqa", Cards("8.0", "8.9"), _NATIVE, decode_context=True),
    DenseBackend("FLASH_ATTN", "gqa", Cards("9.0", "10.9"), _NATIVE | _FP8, sinks=True, decode_context=True),
    DenseBackend("FLASH_ATTN", "gqa", Cards("11.0"), _NATIVE, decode_context=True),
    _flashinfer(Cards("8.0", "8.9"), _NATIVE | _FP8_ANY),
    _flashinfer(_NINE, _NATIVE | _FP8_ANY, ">=0.28,<0.30"),
    _flashinfer(_NINE, _NATIVE | _FP8_ANY, _SINCE_030, sinks=True),
    _flashinfer(Cards("10.0", "12.1"), _NATIVE | _FP8_ANY, sinks=True),
    _flashinfer(_TEN, frozenset({"nvfp4", "nvfp4_4over6"}), sinks=True),
    _flashinfer(Cards("8.0", "9.9"), frozenset({"nvfp4"}), ">=0.32,<0.34"),
    _flashinfer(_TWELVE, frozenset({"nvfp4"}), ">=0.32,<0.34"),
    DenseBackend("TRITON_ATTN", "gqa", _ANY, _NATIVE | _PER_TOKEN, sinks=True),
    DenseBackend("TRITON_ATTN", "gqa", _TRITON_FP8, _FP8_ANY | {"fp8_per_token_head"}, sinks=True),
    DenseBackend("FLEX_ATTENTION", "gqa", _ANY, _NATIVE),
    DenseBackend("TURBOQUANT", "gqa", _ANY, _TURBO),
    DenseBackend(
        "B12X",
        "gqa",
        _TWELVE,
        _PACKED | _FP8,
        block=64,
        versions=_SINCE_030,
        sinks=True,
        chosen=False,
        head_sizes=(64, 128, 192, 256),
    ),
    DenseBackend("FLASHMLA", "mla", _NINE, _NATIVE | _FP8, block=64, decode_context=True),
    DenseBackend("FLASH_ATTN_MLA", "mla", _NINE, _NATIVE, decode_context=True),
    DenseBackend("FLASHINFER_MLA", "mla", _TEN, _NATIVE | _FP8, block=32, decode_context=True),
    DenseBackend("CUTLASS_MLA", "mla", _TEN, _NATIVE | _FP8, block=128, decode_context=True),
    DenseBackend("TOKENSPEED_MLA", "mla", _TEN, _FP8, block=32, decode_context=True),
    DenseBackend("TRITON_MLA", "mla", _ANY, _NATIVE, decode_context=True),
    DenseBackend("TRITON_MLA", "mla", _TRITON_FP8, _FP8, decode_context=True),
)
LATENT_FORMATS = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})
"""KV formats of sparse latent caches."""
KV_FORMATS = LATENT_FORMATS.union(*(backend.dtypes for backend in DENSE_BACKENDS))
"""All KV formats that the tables know; of others nothing is known."""


class SparseBackend(Struct, frozen=True):
    """A stock sparse-MLA backend: major compute capabilities and KV dtypes that it takes."""

    name: str
    versions: str
    majors: tuple[int, ...]
    dtypes: frozenset[str]
    half: bool = False
    """Whether it computes in float16; all compute in bfloat16."""
    decode_context: str | None = None
    """Versions in which it takes decode context parallelism."""
    topk: int | None = None
    """The only index_topk that it takes."""


SPARSE_BACKENDS = (
    SparseBackend("FLASHMLA_SPARSE", READ, (9, 10), _PACKED | {"fp8", "fp8_ds_mla"}, decode_context=_SINCE_030),
    SparseBackend("FLASHMLA_SPARSE", _SINCE_030, (10,), frozenset({"nvfp4_ds_mla"}), decode_context=_SINCE_030),
    SparseBackend("FLASH_ATTN_MLA_SPARSE", READ, (9,), _NATIVE, half=True),
    SparseBackend("FLASH_ATTN_MLA_SPARSE_FA4", ">=0.33,<0.34", (10,), _PACKED, decode_context=READ),
    SparseBackend("FLASHINFER_MLA_SPARSE", READ, (10,), _NATIVE | _FP8, half=True, decode_context=READ),
    SparseBackend("FLASHINFER_MLA_SPARSE_SM120", READ, (12,), _FP8 | {"auto", "fp8_ds_mla"}, topk=2048),
    SparseBackend("FLASHINFER_MLA_SPARSE_SM90", _SINCE_030, (9,), _PACKED | _FP8),
)
