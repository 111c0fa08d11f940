"""Which layers of a checkpoint have indexer weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.errors import DeployError
from shardwright.facts.checkpoint import read_checkpoint

NAMES = ["model.layers.2.self_attn.indexer.wk.weight", "model.layers.21.self_attn.q_a_proj.weight"]


def header(names: list[str]) -> bytes:
    text = json.dumps(
        {"__metadata__": {}, **{name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names}}
    ).encode()
    return len(text).to_bytes(8, "little") + text


def test_layer_2_is_not_taken_for_layer_21(tmp_path: Path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(NAMES, "a")}))
    facts = read_checkpoint(tmp_path, "model")
    assert facts is not None
    assert [layer for layer in range(30) if facts.has_indexer(layer)] == [2]


def test_a_single_shard_without_an_index_is_read_too(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(header(NAMES))
    facts = read_checkpoint(tmp_path, "model")
    assert facts is not None
    assert facts.tensors == frozenset(NAMES)


def test_a_shard_that_is_cut_short_is_refused_though_its_header_reads(tmp_path: Path):
    text = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(text).to_bytes(8, "little") + text + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(whole)
    assert read_checkpoint(tmp_path, "model") is not None
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(DeployError, match=r"^model/model\.safetensors is not a whole safetensors file"):
        read_checkpoint(tmp_path, "model")


def test_a_folder_without_weights_says_nothing(tmp_path: Path):
    assert read_checkpoint(tmp_path, "model") is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors.index.json", b""),
        ("model.safetensors.index.json", b"[]"),
        ("model.safetensors.index.json", b"{}"),
        ("model.safetensors.index.json", b'{"weight_map": []}'),
        ("model.safetensors.index.json", b"\xff"),
        ("model.safetensors.index.json", b"[" * 100_000),
        ("model.safetensors", b""),
        ("model.safetensors", b"\x08"),
        ("model.safetensors", (2**60).to_bytes(8, "little")),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]"),
        ("model.safetensors", (90).to_bytes(8, "little") + b"{"),
    ],
)
def test_a_damaged_checkpoint_is_one_clear_line(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DeployError, match=r"^model"):
        read_checkpoint(tmp_path, "model")
