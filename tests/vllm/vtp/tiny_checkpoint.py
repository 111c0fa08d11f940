"""Write a tiny random DeepSeek-V4 under the names of the real one: `tiny_checkpoint.py FOLDER [DRAFT_LAYERS]`.

Run with the engine's interpreter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

HIDDEN, HEADS, GROUPS, HEAD_DIM, QUERY_RANK, OUTPUT_RANK = 256, 32, 8, 512, 128, 64
WIDTH, EXPERTS, TOP_K, VOCABULARY, INDEX_HEADS, INDEX_DIM, STREAMS = 256, 256, 6, 512, 64, 128, 4
RATIOS = [0, 4, 128]
ADDED = (".wo_b.weight", ".w2.weight")

CONFIG = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": HEAD_DIM,
    "qk_rope_head_dim": 64,
    "q_lora_rank": QUERY_RANK,
    "o_lora_rank": OUTPUT_RANK,
    "o_groups": GROUPS,
    "moe_intermediate_size": WIDTH,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": TOP_K,
    "vocab_size": VOCABULARY,
    "num_hidden_layers": len(RATIOS),
    "num_hash_layers": 1,
    "index_n_heads": INDEX_HEADS,
    "index_head_dim": INDEX_DIM,
    "index_topk": 512,
    "sliding_window": 128,
    "compress_ratios": RATIOS,
    "compress_rope_theta": 160000.0,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 1024,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.5,
    "hc_mult": STREAMS,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "expert_dtype": "bf16",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "num_nextn_predict_layers": 0,
}


def normal(*shape: int, scale: float | None = None, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(*shape) * (shape[-1] ** -0.5 if scale is None else scale)).to(dtype)


def near_one(size: int) -> torch.Tensor:
    return (1 + 0.1 * torch.randn(size)).to(torch.bfloat16)


def compressor(prefix: str, ratio: int, width: int) -> Iterator[tuple[str, torch.Tensor]]:
    doubled = width * (2 if ratio == 4 else 1)
    yield f"{prefix}.wkv.weight", normal(doubled, HIDDEN)
    yield f"{prefix}.wgate.weight", normal(doubled, HIDDEN)
    yield f"{prefix}.ape", normal(ratio, doubled, scale=0.1, dtype=torch.float32)
    yield f"{prefix}.norm.weight", near_one(width)


def attention(prefix: str, ratio: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{prefix}.wq_a.weight", normal(QUERY_RANK, HIDDEN)
    yield f"{prefix}.q_norm.weight", near_one(QUERY_RANK)
    yield f"{prefix}.wq_b.weight", normal(HEADS * HEAD_DIM, QUERY_RANK)
    yield f"{prefix}.wkv.weight", normal(HEAD_DIM, HIDDEN)
    yield f"{prefix}.kv_norm.weight", near_one(HEAD_DIM)
    yield f"{prefix}.wo_a.weight", normal(GROUPS * OUTPUT_RANK, HEADS * HEAD_DIM // GROUPS)
    yield f"{prefix}.wo_b.weight", normal(HIDDEN, GROUPS * OUTPUT_RANK)
    yield f"{prefix}.attn_sink", normal(HEADS, scale=1.0, dtype=torch.float32)
    if ratio > 1:
        yield from compressor(f"{prefix}.compressor", ratio, HEAD_DIM)
    if ratio == 4:
        yield f"{prefix}.indexer.wq_b.weight", normal(INDEX_HEADS * INDEX_DIM, QUERY_RANK)
        yield f"{prefix}.indexer.weights_proj.weight", normal(INDEX_HEADS, HIDDEN)
        yield from compressor(f"{prefix}.indexer.compressor", 4, INDEX_DIM)


def experts(prefix: str, hashed: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{prefix}.gate.weight", normal(EXPERTS, HIDDEN)
    if hashed:
        table = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(VOCABULARY)])
        yield f"{prefix}.gate.tid2eid", table.to(torch.int64)
    else:
        yield f"{prefix}.gate.bias", normal(EXPERTS, scale=0.1, dtype=torch.float32)
    for name in [*(f"experts.{index}" for index in range(EXPERTS)), "shared_experts"]:
        yield f"{prefix}.{name}.w1.weight", normal(WIDTH, HIDDEN)
        yield f"{prefix}.{name}.w3.weight", normal(WIDTH, HIDDEN)
        yield f"{prefix}.{name}.w2.weight", normal(HIDDEN, WIDTH)


def block(prefix: str, ratio: int, hashed: bool) -> Iterator[tuple[str, torch.Tensor]]:
    mixes = (2 + STREAMS) * STREAMS
    yield f"{prefix}.attn_norm.weight", near_one(HIDDEN)
    yield f"{prefix}.ffn_norm.weight", near_one(HIDDEN)
    for part in ("attn", "ffn"):
        yield f"{prefix}.hc_{part}_fn", normal(mixes, STREAMS * HIDDEN, dtype=torch.float32)
        yield f"{prefix}.hc_{part}_base", normal(mixes, scale=0.1, dtype=torch.float32)
        yield f"{prefix}.hc_{part}_scale", torch.ones(3)
    yield from attention(f"{prefix}.attn", ratio)
    yield from experts(f"{prefix}.ffn", hashed)


def target() -> Iterator[tuple[str, torch.Tensor]]:
    yield "embed.weight", normal(VOCABULARY, HIDDEN, scale=1.0)
    # Sharp logits: near ties would let rounding choose the token.
    yield "head.weight", normal(VOCABULARY, HIDDEN, scale=2.0)
    yield "norm.weight", near_one(HIDDEN)
    yield "hc_head_fn", normal(STREAMS, STREAMS * HIDDEN, dtype=torch.float32)
    yield "hc_head_base", normal(STREAMS, scale=0.1, dtype=torch.float32)
    yield "hc_head_scale", torch.ones(1)
    for layer, ratio in enumerate(RATIOS):
        yield from block(f"layers.{layer}", ratio, hashed=layer == 0)


def drafts(count: int, whole: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Draft layers that guess with the target's own head."""
    for number in range(count):
        prefix = f"mtp.{number}"
        yield f"{prefix}.emb.tok_emb.weight", whole["embed.weight"].clone()
        yield f"{prefix}.head.weight", whole["head.weight"].clone()
        yield f"{prefix}.norm.weight", whole["norm.weight"].clone()
        for part in ("fn", "base", "scale"):
            yield f"{prefix}.hc_head_{part}", whole[f"hc_head_{part}"].clone()
        yield f"{prefix}.enorm.weight", near_one(HIDDEN)
        yield f"{prefix}.hnorm.weight", near_one(HIDDEN)
        yield f"{prefix}.e_proj.weight", torch.eye(HIDDEN, dtype=torch.bfloat16)
        yield f"{prefix}.h_proj.weight", normal(HIDDEN, HIDDEN, scale=0.1 * HIDDEN**-0.5)
        yield from block(prefix, ratio=0, hashed=False)


def write_tokenizer(folder: Path) -> None:
    """Words `t0` to `t511`; whatever else is written counts as `t2`."""
    tokenizer = Tokenizer(models.WordLevel({f"t{number}": number for number in range(VOCABULARY)}, unk_token="t2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t2", "bos_token": "t0", "eos_token": "t1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


if __name__ == "__main__":
    torch.manual_seed(0)
    folder, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_nextn_predict_layers": count}, indent=1))
    write_tokenizer(folder)
    tensors = dict(target())
    tensors |= dict(drafts(count, tensors))
    if count:
        # Layers that add little: the next token follows from the last one, so a draft of one layer can guess it.
        tensors = {name: 0.1 * tensor if name.endswith(ADDED) else tensor for name, tensor in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(folder / "model.safetensors"))
