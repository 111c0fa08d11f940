"""Models, layouts and checkpoints for the planner's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardwright.facts.attention import attention_facts
from shardwright.facts.model import IndexRule
from shardwright.plan.kv_pages import CacheSettings, PageRule, page_rule
from shardwright.plan.layer_pages import LayerPages

GLM = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 64,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
}
GLM_RULE = IndexRule(freq=4, offset=3)
DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 262144,
    "dtype": "bfloat16",
}
CALIBRATION = {"partition": [39, 39], "available_gib": [21.95, 15.56], "layer_gib": 1.3014}


def glm_pages(*, flips: bool = False, kv_dtype: str = "fp8_ds_mla", draft_layers: int = 1) -> LayerPages:
    settings = CacheSettings(version="0.30.0", platform="cuda", kv_dtype=kv_dtype)
    rule = page_rule(attention_facts(GLM, 78, True), settings)
    return LayerPages(rule, 78, GLM_RULE, draft_layers=draft_layers, indexers_on_orphans=flips)


def plain_pages(layers: int, sliding: tuple[bool, ...] = (), window: int = 0) -> LayerPages:
    return LayerPages(PageRule(2048, 0, 16, sliding, window), layers, None)


def write_layout(project: Path, name: str = "case", **changes: Any) -> None:
    """A layout in a project of its own; `changes` replace its keys, None removes one."""
    layout: dict[str, Any] = {
        "schema": "shardwright/v1",
        "name": name,
        "status": "ready",
        "model": {"path": "./model"},
        "engine": {
            "image": "engine:0.30.0",
            "vllm": "0.30.0",
            "provides": {"attention_backends": ["TRITON_MLA_SPARSE"], "compute_capability": ["8.0"]},
        },
        "hardware": {"gpus": 8, "compute_capability": "8.0", "memory_gib": 79.25},
        "parallel": {"tensor": 4, "pipeline": 2, "layer_partition": [41, 37]},
        "serve": {"max_model_len": 524288, "kv_cache_dtype": "fp8_ds_mla", "gpu_memory_utilization": 0.95},
        "speculative": {"method": "mtp", "num_speculative_tokens": 3},
        "patches": ["pp-index-recompute"],
        "capacity": {"calibration": CALIBRATION},
        **changes,
    }
    folder = project / "configs" / "layouts"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(json.dumps({key: value for key, value in layout.items() if value is not None}))


def write_config(project: Path, config: dict[str, Any]) -> Path:
    folder = project / "model"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_shard(file: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """A sparse safetensors file: name -> (dtype, shape, bytes); the weights themselves are a hole."""
    header, position = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    encoded = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        stream.truncate(8 + len(encoded) + position)
