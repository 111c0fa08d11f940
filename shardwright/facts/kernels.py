"""On which cards the stock engine's kernels run, read in vLLM 0.28.0, 0.30.0, 0.32.0 and 0.33.0."""

from __future__ import annotations

from shardwright.facts.capability import Cards

# The least compute capability per quantisation method: get_min_capability of its config class in vLLM
# model_executor/layers/quantization; for compressed-tensors and modelopt that of their least demanding usual scheme.
QUANTISATION = {
    "awq": Cards("7.5"),
    "compressed-tensors": Cards("7.5"),
    "experts_int8": Cards("8.0"),
    "fbgemm_fp8": Cards("8.0"),
    "fp8": Cards("7.5"),
    "fp_quant": Cards("10.0"),
    "gptq": Cards("6.0"),
    "humming": Cards("7.5"),
    "modelopt": Cards("7.5"),
    "moe_wna16": Cards("7.0"),
    "quark": Cards("7.0"),
    "torchao": Cards("7.5"),
}

# Backends for experts by their flag value, vLLM fused_moe/experts: _supports_current_device. Others run anywhere, or
# depend on the weights.
MOE_BACKENDS = {
    "flashinfer_trtllm": (Cards("10.0", "10.9"),),
    "flashinfer_cutedsl": (Cards("10.0", "10.9"),),
    "flashinfer_cutlass": (Cards("9.0", "9.0"), Cards("10.0", "12.9")),
    "flashinfer_b12x": (Cards("12.0", "12.9"),),
    "b12x": (Cards("12.0", "12.9"),),
    "marlin": (Cards("7.5"),),
    "humming": (Cards("7.5"),),
}
