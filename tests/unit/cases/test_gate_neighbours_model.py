"""Neighbours of the known situations on the model's side: families, versions, cards and spellings that vary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run

LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128, "vocab_size": 129280}
EXPERTS = {"n_routed_experts": 256, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3}
V3 = {
    **LATENT,
    **EXPERTS,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
V32 = {**V3, "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "index_topk": 2048}
GLM = {
    **V32,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
}
HY4 = {
    "architectures": ["HYV4ForCausalLM"],
    "model_type": "hy_v4",
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "index_topk": 2048,
}
V4 = {
    **LATENT,
    **EXPERTS,
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "index_topk": 512,
    "expert_dtype": "fp4",
}
K2 = {**V3, "model_type": "kimi_k2", "num_attention_heads": 64, "num_nextn_predict_layers": 0}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
QWEN = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 32768}
MOE = {
    **LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "num_experts": 128,
    "moe_intermediate_size": 1536,
    "vocab_size": 151936,
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
BLOCKS = {**MOE, "quantization_config": FP8}
GPT_OSS = {
    **LLAMA,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "vocab_size": 201088,
    "quantization_config": {"quant_method": "mxfp4"},
}
MINIMAX = {**BLOCKS, "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "num_attention_heads": 48}
AWQ = {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def on(tensor: int = 8, pipeline: int = 1, split: str | None = None, version: str = "0.30.0", **layout: Any) -> Any:
    parallel = {"tensor": tensor, "pipeline": pipeline, **({"layer_partition": split} if split else {})}
    return {"parallel": parallel, "engine": {"vllm": version}, **layout}


def serve(**flags: Any) -> dict[str, Any]:
    return {"serve": flags}


def drafts(method: str, tokens: int = 1, **keys: Any) -> dict[str, Any]:
    return {"speculative": {"method": method, "num_speculative_tokens": tokens, **keys}}


def overrides(**keys: Any) -> dict[str, Any]:
    return serve(hf_overrides=keys)


A, W, R, U = "accept", "warn", "reject", "unknown"
CASES: list[tuple[Any, dict[str, Any], str | None, str, str]] = [
    # layout, model, compute capability of the cards, outcome, words
    (on(4, 2, "39,39"), HY4, None, R, "39,40"),
    (on(4, 2, "41,37"), HY4, None, A, ""),
    (on(4, 2, "39,39"), {**HY4, "indexer_types": ["full"] * 78}, None, A, ""),
    (on(4, 2, "31,30", **overrides(index_topk_freq=4)), V32, "9.0", R, "pp-dsa"),
    (on(4, 2, "31,30"), V32, "9.0", A, ""),
    (on(4, 2, "40,38"), {**GLM, "index_topk_pattern": ("FSSS" * 20)[:78]}, "9.0", A, ""),
    (on(4, 2, "39,39", **overrides(index_skip_topk_offset=4)), GLM, "9.0", U, "index_skip_topk_offset=4"),
    (on(4, 2, "22,21"), V4, "9.0", A, ""),
    (on(2, 2), {**V3, "architectures": ["Glm5NextForCausalLM"], "model_type": "glm5_next"}, "9.0", R, "2 stages"),
    (on(2, 2, **serve(enable_return_routed_experts=True)), MOE, None, R, "does not go with PP=2"),
    # speculation
    (on(**drafts("mtp", 3)), V3, "9.0", A, ""),
    (on(**drafts("mtp", 3)), K2, "9.0", R, "says it has none"),
    (on(**drafts("mtp")), LLAMA, None, R, "llama has none"),
    (on(**drafts("mtp")), MINIMAX, None, R, "minimax_m2 has none"),
    (on(**drafts("mtp")), {**V4, "model_type": "deepseek_v41"}, "9.0", R, "SPEC_METHOD=dspark"),
    (on(4, 2, **drafts("dspark", 5, enable_adaptive_verification=True)), V4, "9.0", R, "adaptive"),
    (on(4, 2, **drafts("dspark", 5)), V4, "9.0", A, ""),
    (on(version="0.32.0", **drafts("ngram"), **serve(async_scheduling=True)), LLAMA, None, R, "async"),
    (on(version="0.32.0", **drafts("ngram")), LLAMA, None, A, ""),
    (on(4, 2, version="0.33.0", v2_runner="0", **serve(async_scheduling=True)), LLAMA, None, R, "model runner V2"),
    (on(4, 2, **drafts("eagle3", 3, model="a/b")), {**LLAMA, "model_type": "mistral"}, None, A, ""),
    # sizes
    (on(8), BLOCKS, None, R, "1536 / 8 = 192"),
    (on(4, **serve(data_parallel_size=2)), BLOCKS, "9.0", R, "x 2 (DP x PCP)"),
    (on(4, **serve(data_parallel_size=2, enable_expert_parallel=True)), BLOCKS, "9.0", A, ""),
    (on(8), GPT_OSS, "9.0", A, ""),
    (on(4), GPT_OSS, "8.0", A, ""),
    (on(7), GPT_OSS, None, R, "2880 % 7"),
    (on(8), {**LLAMA, "intermediate_size": 11072, "quantization_config": {"quant_algo": "NVFP4"}}, None, R, "size 16"),
    (on(4, **serve(enable_eplb=True)), MOE, None, R, "without expert parallelism"),
    (
        on(4, **serve(enable_expert_parallel=True, eplb_config={"num_redundant_experts": 4})),
        MOE,
        None,
        R,
        "enable_eplb",
    ),
    (on(4, **serve(enable_expert_parallel=True, enable_eplb=True)), MOE, None, A, ""),
    # attention backends
    (on(**serve(attention_backend="FLASHMLA")), LLAMA, "9.0", R, "latent (MLA) attention only"),
    (on(**serve(**{"attention_config.backend": "FLASHMLA"})), LLAMA, "9.0", R, "latent (MLA) attention only"),
    (on(**serve(attention_backend="FLASH_ATTN")), V3, "9.0", R, "plain attention only"),
    (on(**serve(attention_backend="FLASHMLA")), V3, "8.0", R, "TRITON_MLA"),
    (on(16), V3, "8.0", A, ""),
    (on(**serve(attention_backend="CUTLASS_MLA", block_size=64)), V3, "10.0", R, "multiple of 128"),
    (on(**serve(attention_backend="CUTLASS_MLA", block_size=128)), V3, "10.0", A, ""),
    (on(**serve(attention_backend="FLASHMLA_SPARSE")), V3, "9.0", R, "sparse attention only"),
    (on(**serve(attention_backend="FLASHMLA")), V32, "9.0", R, "needs sparse attention"),
    (on(**serve(kv_cache_dtype="fp8")), LLAMA, "8.0", A, ""),
    (on(**serve(kv_cache_dtype="fp8", attention_backend="FLASH_ATTN")), LLAMA, "8.0", R, "takes no KV dtype fp8"),
    (on(**serve(kv_cache_dtype="fp8")), V3, "8.0", R, "KV dtype fp8"),
    (on(**serve(kv_cache_dtype="fp8")), V3, "8.9", A, ""),
    (on(**serve(kv_cache_dtype="fp8_ds_mla")), V3, "9.0", R, "KV dtype fp8_ds_mla"),
    (on(**serve(kv_cache_dtype="fp8_e5m2")), LLAMA, "8.0", A, ""),
    (on(**serve(kv_cache_dtype="nvfp4")), LLAMA, "9.0", R, "KV dtype nvfp4"),
    (on(version="0.32.0", **serve(kv_cache_dtype="nvfp4")), LLAMA, "9.0", A, ""),
    (on(**serve(attention_backend="FLASH_ATTN")), GPT_OSS, "8.0", R, "attention sinks"),
    (on(**serve(block_size=8)), LLAMA, "9.0", R, "block size 8"),
    (on(**serve(dtype="float16")), GLM, "12.0", R, "bfloat16 only"),
    (on(), {**GLM, "index_topk": 1024}, "12.1", R, "index_topk 2048 only"),
    (on(**serve(decode_context_parallel_size=2)), GLM, "9.0", A, ""),
    (on(version="0.28.0", **serve(decode_context_parallel_size=2)), GLM, "9.0", R, "DCP=2"),
    (on(**serve(decode_context_parallel_size=2)), GLM, "12.0", R, "DCP=2"),
    (on(**serve(moe_backend="flashinfer_trtllm")), MOE, "9.0", R, "flashinfer_trtllm does not run"),
    (on(**serve(moe_backend="flashinfer_trtllm")), MOE, "10.0", A, ""),
    # lengths
    (on(**serve(max_model_len=131073)), LLAMA, None, R, "131,072 positions"),
    (on(**serve(max_model_len=131072)), LLAMA, None, A, ""),
    (on(**serve(max_model_len="128k")), QWEN, None, R, "MAX_MODEL_LEN=32768"),
    (on(env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, **serve(max_model_len=65536)), QWEN, None, W, "32,768 positions"),
    (
        on(**serve(max_model_len=131072, hf_overrides={"rope_scaling": YARN})),
        QWEN,
        None,
        R,
        "max_position_embeddings: 1",
    ),
    (on(version="0.28.0", **serve(max_model_len=131072, hf_overrides={"rope_scaling": YARN})), QWEN, None, A, ""),
    (
        on(**serve(max_model_len=131072, hf_overrides={"rope_scaling": YARN, "max_position_embeddings": 131072})),
        QWEN,
        None,
        A,
        "",
    ),
    (on(16, **serve(max_model_len=163840)), V3, "9.0", A, ""),
    # quantisation
    (on(**serve(quantization="gptq")), AWQ, None, R, "quantised by awq"),
    (on(**serve(quantization="awq_marlin")), AWQ, None, A, ""),
    (on(), AWQ, "7.0", R, "7.5"),
    (on(), AWQ, "7.5", A, ""),
    (on(**serve(quantization="fp8")), LLAMA, "7.0", R, "7.5"),
]


@pytest.mark.parametrize(("layout", "model", "capability", "outcome", "words"), CASES)
def test_a_neighbour_of_the_model_has_its_right_outcome(
    layout: dict[str, Any],
    model: dict[str, Any],
    capability: str | None,
    outcome: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = {"image": "engine:1.0", **layout["engine"]}
    base = {"schema": "shardwright/v1", "name": "case", "model": {"path": "/models/x"}, "container": {"ipc": "host"}}
    (tmp_path / "case.yaml").write_text(json.dumps({**base, **layout, "engine": engine}))
    cards = [] if capability is None else [{"cc": capability, "mem_gib": 180.0, "count": 16}]
    (tmp_path / "facts.json").write_text(json.dumps({"model": model, **({"gpus": cards} if cards else {})}))
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    run(["check", str(tmp_path / "case.yaml"), "--facts", str(tmp_path / "facts.json"), "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["verdict"] == outcome, printed.out
    assert words in printed.out
