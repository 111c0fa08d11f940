"""The KV dtype that a quantised checkpoint brings with it, where the layout leaves it to `auto`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning_samples import DENSE, write_config, write_layout

GIVEN_BYTES = 10 * 2**30
TOKENS_IN_16_BITS = GIVEN_BYTES // (48 * 2 * 4 * 128 * 2)

SCHEME = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor", "symmetric": True}


def pool(project: Path, plan_json: Callable[..., Any], quantisation: Any, **serve: Any) -> int:
    write_config(project, {**DENSE, "quantization_config": quantisation})
    write_layout(
        project,
        parallel={"tensor": 1},
        serve={"kv_cache_memory_bytes": GIVEN_BYTES, **serve},
        speculative={"method": "none"},
        patches=[],
        capacity=None,
    )
    tokens: int = plan_json("case")["pool_tokens"]
    return tokens


@pytest.mark.parametrize(
    "quantisation",
    [
        {"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
    ],
)
def test_a_checkpoint_with_scales_for_its_cache_holds_twice_as_many_tokens(
    project: Path, plan_json: Callable[..., Any], quantisation: Any
) -> None:
    halved = pool(project, plan_json, quantisation)
    assert halved == pytest.approx(2 * TOKENS_IN_16_BITS, rel=0.001)
    assert pool(project, plan_json, quantisation, kv_cache_dtype="auto") == halved
    asked = pool(project, plan_json, quantisation, kv_cache_dtype="bfloat16")
    assert asked == pytest.approx(TOKENS_IN_16_BITS, rel=0.001)


@pytest.mark.parametrize(
    "quantisation",
    [
        {"quant_method": "compressed-tensors", "kv_cache_scheme": None},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ],
)
def test_a_checkpoint_without_them_does_not(project: Path, plan_json: Callable[..., Any], quantisation: Any) -> None:
    assert pool(project, plan_json, quantisation) == pytest.approx(TOKENS_IN_16_BITS, rel=0.001)


def test_a_four_bit_cache_is_not_guessed(project: Path, deploy: Callable[..., tuple[int, str, str]]) -> None:
    write_config(
        project, {**DENSE, "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}}
    )
    write_layout(project, parallel={"tensor": 1}, serve={}, speculative={"method": "none"}, patches=[], capacity=None)
    status, _, err = deploy("plan", "case")
    assert status == 3 and "nvfp4" in err
