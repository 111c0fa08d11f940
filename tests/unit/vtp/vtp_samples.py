"""Models, alignments and the patch's own module for the tests of odd tensor parallelism."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shardwright.facts.virtual_tp import TABLE, VtpTable, read_config, read_vtp_table
from shardwright.plan.virtual_sizes import ModelSizes, alignment_for, model_sizes
from shardwright.plan.virtual_tp import VirtualPlan, make_plan
from tests.unit.helpers import ROOT

FLASH = read_config(ROOT / "configs/models/deepseek-v4-flash.yaml", "flash")
PRO = read_config(ROOT / "configs/models/deepseek-v4-pro.yaml", "pro")
FRAGMENT = ROOT / "patches/virtual-tp/virtual_tp.pyfrag"


def table() -> VtpTable:
    return read_vtp_table(ROOT / TABLE)


def plan(config: Mapping[str, Any], tp: int) -> VirtualPlan:
    """For the Lucifer pair of vLLM 0.30."""
    sizes: ModelSizes = model_sizes(config, "config.json")
    alignment = alignment_for(table(), "deepseek_v4", "FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass", "0.30.0")
    return make_plan(sizes, tp, alignment)


def fragment() -> ModuleType:
    """The module that the patch adds to the engine, imported from its own text."""
    loader = importlib.machinery.SourceFileLoader("virtual_tp_under_test", str(FRAGMENT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def write_safetensors(file: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> None:
    """A safetensors file of zeros: name to dtype, shape and bytes per element."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, width) in tensors.items():
        size = width
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(position))


def small_config() -> dict[str, Any]:
    """A DeepSeek-V4 of a few kilobytes, unquantised."""
    config = {**FLASH, "hidden_size": 8, "num_attention_heads": 16, "head_dim": 4, "o_groups": 8, "q_lora_rank": 4}
    config |= {"o_lora_rank": 2, "n_routed_experts": 2, "moe_intermediate_size": 64, "vocab_size": 128}
    config |= {"num_hidden_layers": 1, "num_nextn_predict_layers": 0, "expert_dtype": "bf16"}
    del config["quantization_config"]
    return config


def small_tensors() -> dict[str, tuple[str, tuple[int, ...], int]]:
    """What a checkpoint of `small_config` holds."""
    names = {
        "embed.weight": (128, 8),
        "head.weight": (128, 8),
        "norm.weight": (8,),
        "layers.0.attn.wq_b.weight": (64, 4),
        "layers.0.attn.wo_a.weight": (16, 8),
        "layers.0.attn.wo_b.weight": (8, 16),
        "layers.0.attn.attn_sink": (16,),
        "layers.0.attn.indexer.wq_b.weight": (7, 4),
        "layers.0.ffn.gate.weight": (2, 8),
    }
    for expert in ("experts.0", "experts.1", "shared_experts"):
        names |= {f"layers.0.ffn.{expert}.{part}.weight": (64, 8) for part in ("w1", "w3")}
        names[f"layers.0.ffn.{expert}.w2.weight"] = (8, 64)
    return {name: ("BF16", shape, 2) for name, shape in names.items()}


def small_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(small_config()))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / "model.safetensors", small_tensors())
    return folder
