"""Borders of a page of the KV cache: each format by its own name, each version and card on both sides."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shardwright.facts.attention import AttentionFacts
from shardwright.plan.kv_pages import CacheSettings, PageRule, UnknownPagesError, page_rule

CUDA = CacheSettings(version="0.30.0", platform="cuda")
GQA = AttentionFacts("gqa", num_kv_heads=4, head_dim=128)
SPARSE = AttentionFacts("sparse-mla", latent_dim=512, rope_dim=64, index_head_dim=128)


def test_a_cache_nobody_asks_anything_of_is_the_engines_own() -> None:
    assert CacheSettings("0.30.0", "cuda", "auto", "auto", None, 1, None, True) == CUDA


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"])
def test_every_name_of_fp8_is_one_byte(name: str) -> None:
    assert page_rule(GQA, replace(CUDA, kv_dtype=name)) == PageRule(4 * 2 * 128, 0, 16)
    with pytest.raises(UnknownPagesError, match="name fp8_ds_mla"):
        page_rule(SPARSE, replace(CUDA, kv_dtype=name, capability_major=10))


def test_a_latent_cache_of_its_own_has_blocks_of_64_tokens_and_no_indexer() -> None:
    assert page_rule(AttentionFacts("mla", latent_dim=512, rope_dim=64), CUDA) == PageRule(1152, 0, 64)


@pytest.mark.parametrize(
    ("sliding", "hybrid", "kept"),
    [
        ((), True, ()),
        ((True, False), True, (True, False)),
        ((True, False), False, ()),
        ((True, True), False, (True, True)),
    ],
)
def test_windows_are_given_up_only_by_mixed_models(
    sliding: tuple[bool, ...], hybrid: bool, kept: tuple[bool, ...]
) -> None:
    model = replace(GQA, sliding=sliding, window=64 if sliding else 0)
    assert page_rule(model, replace(CUDA, hybrid_manager=hybrid)) == PageRule(2048, 0, 16, kept, 64 if kept else 0)


def test_packed_pages_carry_a_scale_for_every_whole_128_elements() -> None:
    packed = replace(CUDA, kv_dtype="fp8_ds_mla")
    sizes = {latent: page_rule(replace(SPARSE, latent_dim=latent), packed).layer_bytes for latent in (512, 1016, 1032)}
    assert sizes == {512: 656, 1016: 1016 + 7 * 4 + 128, 1032: 1032 + 8 * 4 + 128}
    keys = {size: page_rule(replace(SPARSE, index_head_dim=size), packed).indexer_bytes for size in (128, 1016, 1032)}
    assert keys == {128: 132, 1016: 1016 + 7 * 4, 1032: 1032 + 8 * 4}


@pytest.mark.parametrize(("version", "known"), [("0.29.9", False), ("0.30.0", True), ("0.31.0", True)])
def test_the_four_bit_cache_comes_with_its_version(version: str, known: bool) -> None:
    asked = replace(CUDA, kv_dtype="nvfp4_ds_mla", version=version)
    if known:
        assert page_rule(SPARSE, asked).layer_bytes == 352
    else:
        with pytest.raises(UnknownPagesError, match=version):
            page_rule(SPARSE, asked)


@pytest.mark.parametrize(
    ("major", "kind", "expected"),
    [
        (12, "auto", 656),
        (12, "fp8", 656),
        (12, "fp8_e4m3", 656),
        (12, "fp8_e5m2", None),
        (12, "bfloat16", 1152),
        (11, "auto", 1152),
        (11, "fp8", None),
        (13, "auto", 1152),
        (13, "fp8", None),
        (10, "fp8", None),
        (9, "auto", 1152),
        (9, "fp8", 656),
        (9, "fp8_e5m2", 656),
        (8, "fp8", None),
        (None, "auto", 1152),
        (None, "fp8", None),
    ],
)
def test_what_a_sparse_cache_is_packed_into_depends_on_the_card(major: int | None, kind: str, expected: Any) -> None:
    asked = replace(CUDA, kv_dtype=kind, capability_major=major)
    if expected is None:
        with pytest.raises(UnknownPagesError, match=kind):
            page_rule(SPARSE, asked)
    else:
        assert page_rule(SPARSE, asked).layer_bytes == expected
