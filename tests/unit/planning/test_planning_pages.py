from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from planning_samples import DENSE, GLM

from shardwright.facts.attention import attention_facts
from shardwright.plan.kv_pages import CacheSettings, UnknownPagesError, page_rule

CUDA = CacheSettings(version="0.30.0", platform="cuda")
LATENT = {"num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61}


def facts(config: dict[str, Any], **changes: Any) -> Any:
    merged = {key: value for key, value in {**config, **changes}.items() if value is not None}
    return attention_facts(merged, merged["num_hidden_layers"], "Dsa" in str(merged.get("architectures")))


@pytest.mark.parametrize(
    ("kv_dtype", "layer_bytes"),
    [("fp8_ds_mla", 656), ("bfloat16", 1152), ("auto", 1152), ("nvfp4_ds_mla", 352)],
)
def test_sparse_pages_follow_the_cache_format(kv_dtype: str, layer_bytes: int) -> None:
    rule = page_rule(facts(GLM), replace(CUDA, kv_dtype=kv_dtype))
    assert (rule.layer_bytes, rule.indexer_bytes, rule.block_tokens) == (layer_bytes, 132, 64)


def test_a_format_newer_than_the_engine_is_unknown() -> None:
    with pytest.raises(UnknownPagesError, match=r"0\.28\.0"):
        page_rule(facts(GLM), replace(CUDA, kv_dtype="nvfp4_ds_mla", version="0.28.0"))


def test_plain_fp8_of_a_sparse_cache_is_what_the_backend_makes_of_it() -> None:
    for major, expected in ((9, 656), (12, 656)):
        assert page_rule(facts(GLM), replace(CUDA, kv_dtype="fp8", capability_major=major)).layer_bytes == expected
    with pytest.raises(UnknownPagesError, match="fp8_ds_mla"):
        page_rule(facts(GLM), replace(CUDA, kv_dtype="fp8", capability_major=8))
    assert page_rule(facts(GLM), replace(CUDA, capability_major=12)).layer_bytes == 656


@pytest.mark.parametrize(("kv_dtype", "expected"), [("auto", 1152), ("fp8", 576), ("float32", 2304)])
def test_dense_latent_pages_have_no_indexer(kv_dtype: str, expected: int) -> None:
    rule = page_rule(facts(LATENT), replace(CUDA, kv_dtype=kv_dtype))
    assert (rule.layer_bytes, rule.indexer_bytes) == (expected, 0)


@pytest.mark.parametrize(("tensor", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_kv_heads_are_divided_down_to_one_and_then_copied(tensor: int, heads: int) -> None:
    assert page_rule(facts(DENSE), replace(CUDA, tensor=tensor)).layer_bytes == heads * 2 * 128 * 2


def test_the_dtype_asked_for_counts_and_a_float32_checkpoint_does_not() -> None:
    assert page_rule(facts(DENSE, dtype="float32"), CUDA).layer_bytes == 2048
    assert page_rule(facts(DENSE), replace(CUDA, dtype="float32")).layer_bytes == 4096
    for name in ("half", "float16", "bfloat16"):
        assert page_rule(facts(DENSE), replace(CUDA, dtype=name)).layer_bytes == 2048
        assert page_rule(facts(DENSE), replace(CUDA, dtype="float", kv_dtype=name)).layer_bytes == 2048
    assert page_rule(facts(DENSE), replace(CUDA, dtype="float")).layer_bytes == 4096
    assert page_rule(facts(DENSE), replace(CUDA, dtype="float32", kv_dtype="fp8")).layer_bytes == 1024


def test_a_model_without_kv_heads_has_as_many_as_it_has_heads() -> None:
    assert page_rule(facts(DENSE, num_key_value_heads=None, head_dim=None), CUDA).layer_bytes == 32 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("platform", "config", "block"), [("cpu", DENSE, 128), ("cpu", LATENT, 16), ("cuda", DENSE, 16)]
)
def test_blocks_have_the_platforms_size(platform: str, config: dict[str, Any], block: int) -> None:
    assert page_rule(facts(config), replace(CUDA, platform=platform)).block_tokens == block
    assert page_rule(facts(config), replace(CUDA, platform=platform, block_tokens=256)).block_tokens == 256


def test_mixed_layers_keep_their_window_unless_the_hybrid_manager_is_off() -> None:
    kinds = ["sliding_attention", "full_attention"] * 24
    mixed = facts(DENSE, layer_types=kinds, sliding_window=1024)
    rule = page_rule(mixed, CUDA)
    assert rule.window == 1024 and rule.sliding == (True, False) * 24
    assert page_rule(mixed, replace(CUDA, hybrid_manager=False)).sliding == ()


def test_an_unused_window_is_no_window() -> None:
    assert page_rule(facts(DENSE, sliding_window=4096, use_sliding_window=False), CUDA).sliding == ()
    assert page_rule(facts(DENSE, layer_types=["full_attention"] * 48, sliding_window=4096), CUDA).sliding == ()


def test_a_pattern_makes_every_nth_layer_full() -> None:
    sliding = page_rule(facts(DENSE, sliding_window=512, sliding_window_pattern=6), CUDA).sliding
    assert [layer for layer in range(48) if not sliding[layer]] == [5, 11, 17, 23, 29, 35, 41, 47]


def test_mistral_slides_everywhere() -> None:
    assert page_rule(facts(DENSE, model_type="mistral", sliding_window=4096), CUDA).sliding == (True,) * 48


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer_types": ["linear_attention", "full_attention"] * 24}, "linear_attention"),
        ({"layer_types": ["full_attention"] * 40}, "40 of 48"),
        ({"layer_types": ["sliding_attention"] * 48}, "without a sliding_window"),
        ({"sliding_window": 4096}, "which layers"),
        ({"mamba_d_state": 128}, "mamba_d_state"),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers"),
        ({"index_topk": 512}, "sparse attention"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"num_attention_heads": None, "num_key_value_heads": None}, "no KV heads"),
    ],
)
def test_what_has_no_rule_is_unknown_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnknownPagesError, match=reason):
        page_rule(facts(DENSE, **changes), CUDA)


def test_an_unknown_cache_format_is_unknown() -> None:
    with pytest.raises(UnknownPagesError, match="turboquant"):
        page_rule(facts(DENSE), replace(CUDA, kv_dtype="turboquant_k8v4"))
    with pytest.raises(UnknownPagesError, match="config is not known"):
        page_rule(None, CUDA)


@pytest.mark.parametrize(
    ("model_type", "every", "window"),
    [("gemma2", 2, 4096), ("gemma3_text", 6, 4096), ("cohere2", 4, 4096), ("gpt_oss", 2, 128)],
)
def test_a_config_that_is_silent_of_its_windows_has_those_of_its_family(
    model_type: str, every: int, window: int
) -> None:
    silent = facts(DENSE, model_type=model_type)
    assert [layer for layer, slides in enumerate(silent.sliding[:12], 1) if not slides] == [*range(every, 13, every)]
    assert silent.window == window
    assert facts(DENSE, model_type=model_type, sliding_window=512).window == 512
    off = dict(DENSE, model_type=model_type, sliding_window=None)
    assert attention_facts(off, 48, False).sliding == ()
