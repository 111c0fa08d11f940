"""Write a tiny GLM with sparse attention and shared indexers: 12 layers, of which 0, 1, 2, 6 and 10 compute rows.

    python checkpoint.py FOLDER [--quantised]

Every tensor is drawn from its own name, so two folders agree on the tensors that both have. `--quantised` declares a
quantisation that no layer really has: the loader then accepts missing weights, as it does for real checkpoints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, FREQUENCY, OFFSET, TOPK = 12, 4, 3, 16
HIDDEN, HEADS, LATENT, ROPE, NOPE, VALUE, VOCABULARY = 128, 4, 64, 32, 32, 32, 512
# With fewer index heads many scores are exactly 0, and ties are broken differently by different engines.
INDEX_HEADS, INDEX_DIM = 16, 128
EXPERTS, EXPERT_WIDTH, DENSE_LAYERS, DENSE_WIDTH = 8, 64, 2, 256
WEIGHTS = "model-00001-of-00001.safetensors"

CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "q_lora_rank": LATENT,
    "kv_lora_rank": LATENT,
    "qk_rope_head_dim": ROPE,
    "qk_nope_head_dim": NOPE,
    "v_head_dim": VALUE,
    "head_dim": ROPE,
    "vocab_size": VOCABULARY,
    "num_hidden_layers": LAYERS,
    "intermediate_size": DENSE_WIDTH,
    "moe_intermediate_size": EXPERT_WIDTH,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": DENSE_LAYERS,
    "moe_layer_freq": 1,
    "index_topk": TOPK,
    "index_n_heads": INDEX_HEADS,
    "index_head_dim": INDEX_DIM,
    "index_topk_freq": FREQUENCY,
    "index_skip_topk_offset": OFFSET,
    "indexer_rope_interleave": True,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "num_nextn_predict_layers": 0,
    "dtype": "float32",
}
QUANTISATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["re:.*"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
                "dynamic": False,
            },
        }
    },
}


def is_shared(layer: int) -> bool:
    """Whether the layer reuses the rows of an earlier one and so has no indexer."""
    return max(layer - OFFSET + 1, 0) % FREQUENCY != 0


def drawn(name: str, *shape: int, scale: float | None = None) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:5], "big")
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values * (scale if scale is not None else shape[-1] ** -0.5)


def tensors() -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def weight(name: str, *shape: int, scale: float | None = None) -> None:
        found[f"{name}.weight"] = drawn(f"{name}.weight", *shape, scale=scale)

    def norm(name: str, size: int) -> None:
        found[f"{name}.weight"] = torch.ones(size)

    weight("model.embed_tokens", VOCABULARY, HIDDEN, scale=1.0)
    weight("lm_head", VOCABULARY, HIDDEN, scale=3 * HIDDEN**-0.5)
    norm("model.norm", HIDDEN)
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        norm(f"{block}.input_layernorm", HIDDEN)
        norm(f"{block}.post_attention_layernorm", HIDDEN)
        attention = f"{block}.self_attn"
        weight(f"{attention}.q_a_proj", LATENT, HIDDEN)
        norm(f"{attention}.q_a_layernorm", LATENT)
        weight(f"{attention}.q_b_proj", HEADS * (NOPE + ROPE), LATENT, scale=1.7 * LATENT**-0.5)
        weight(f"{attention}.kv_a_proj_with_mqa", LATENT + ROPE, HIDDEN)
        norm(f"{attention}.kv_a_layernorm", LATENT)
        weight(f"{attention}.kv_b_proj", HEADS * (NOPE + VALUE), LATENT, scale=1.7 * LATENT**-0.5)
        weight(f"{attention}.o_proj", HIDDEN, HEADS * VALUE, scale=2 * (HEADS * VALUE) ** -0.5)
        if not is_shared(layer):
            indexer = f"{attention}.indexer"
            weight(f"{indexer}.wq_b", INDEX_HEADS * INDEX_DIM, LATENT)
            weight(f"{indexer}.wk", INDEX_DIM, HIDDEN)
            norm(f"{indexer}.k_norm", INDEX_DIM)
            found[f"{indexer}.k_norm.bias"] = torch.zeros(INDEX_DIM)
            weight(f"{indexer}.weights_proj", INDEX_HEADS, HIDDEN)
        widths = {f"{block}.mlp": DENSE_WIDTH}
        if layer >= DENSE_LAYERS:
            weight(f"{block}.mlp.gate", EXPERTS, HIDDEN)
            found[f"{block}.mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
            names = [f"experts.{expert}" for expert in range(EXPERTS)] + ["shared_experts"]
            widths = {f"{block}.mlp.{name}": EXPERT_WIDTH for name in names}
        for name, width in widths.items():
            weight(f"{name}.gate_proj", width, HIDDEN)
            weight(f"{name}.up_proj", width, HIDDEN)
            weight(f"{name}.down_proj", HIDDEN, width)
    return found


def write_checkpoint(folder: Path, *, quantised: bool = False) -> Path:
    """Write config, weights and index into `folder`, some 15 MB in well under a second."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **({"quantization_config": QUANTISATION} if quantised else {})}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    found = tensors()
    save_file(
        {name: tensor.contiguous() for name, tensor in found.items()}, folder / WEIGHTS, metadata={"format": "pt"}
    )
    size = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(found, WEIGHTS)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quantised", action="store_true")
    options = parser.parse_args()
    print(write_checkpoint(options.folder, quantised=options.quantised))
