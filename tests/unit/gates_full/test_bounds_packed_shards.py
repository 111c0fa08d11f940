"""Packed layers whose parts are narrower than the engine's kernels take them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from deployed import deployed, said

from shardwright.facts.facts import Facts
from shardwright.facts.packed import PackedLinear
from shardwright.gates.packed_shards import check_packed_shards

OLD = {"vllm": "0.23.0"}


def found(name: str, outputs: int, *others: PackedLinear, vllm: str = "0.23.0", tensor: int = 2) -> list[str]:
    facts = Facts(packed=(PackedLinear(name, outputs), *others))
    return said(check_packed_shards, deployed(tensor=tensor, engine={"vllm": vllm}), facts)


def test_a_narrow_part_is_refused_by_name() -> None:
    assert found("model.layers.*.mlp.x", 192) == [
        "packed-shards reject: model.layers.*.mlp.x: 192 columns / 2 = 96, not a multiple of 64"
    ]
    assert found("model.layers.*.mlp.x", 256) == []
    assert found("model.layers.*.mlp.x", 192, tensor=1) == []


@pytest.mark.parametrize(
    ("vllm", "refused"), [("0.23.0", True), ("0.23.9", True), ("0.24.0", False), ("0.24.1", False)]
)
def test_the_engine_pads_from_0_24_on(vllm: str, refused: bool) -> None:
    assert bool(found("model.layers.*.mlp.x", 192, vllm=vllm)) == refused


@pytest.mark.parametrize(("remedy", "refused"), [("sub-tile-shards", False), ("another", True)])
def test_a_patch_that_pads_is_a_remedy(remedy: str, refused: bool) -> None:
    facts = Facts(packed=(PackedLinear("model.layers.*.mlp.x", 192),))
    patched = deployed(tensor=2, engine=OLD, patches=(SimpleNamespace(remedies=(remedy,)),))
    assert bool(said(check_packed_shards, patched, facts)) == refused


@pytest.mark.parametrize("last", ["o_proj", "down_proj", "w2", "q_a_proj", "kv_a_proj_with_mqa", "gate", "k_proj"])
def test_layers_that_are_cut_along_their_inputs_or_not_at_all_are_no_matter(last: str) -> None:
    assert found(f"model.layers.*.mlp.{last}", 192) == []


def test_indexers_are_whole() -> None:
    assert found("model.layers.*.indexer.wk", 192) == []


@pytest.mark.parametrize(("one", "other"), [("gate_proj", "up_proj"), ("in_proj_a", "in_proj_b")])
def test_layers_that_run_as_one_count_together(one: str, other: str) -> None:
    for first, second in ((one, other), (other, one)):
        assert found(f"m.*.{first}", 192, PackedLinear(f"m.*.{second}", 192)) == []
        assert len(found(f"m.*.{first}", 192, PackedLinear(f"m.*.{second}", 128))) == 2
        assert found(f"m.*.{first}", 64, PackedLinear(f"m.*.{second}", 64)) == []
        assert found(f"m.*.{first}", 64, PackedLinear(f"n.*.{second}", 128)) != []
        assert found(f"m.*.{first}", 128) == []
