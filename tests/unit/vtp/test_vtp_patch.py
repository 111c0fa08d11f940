"""The patch's own module: what it pads, what it refuses, and what its audit finds."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.campaign.vtp.checkpoint import tensor_kind
from shardwright.campaign.vtp.checks import plan_document
from shardwright.overlay.patch import read_patch
from shardwright.plan.storage_units import split_units
from tests.unit.helpers import ROOT
from tests.unit.vtp.vtp_samples import FLASH, fragment, plan

torch = pytest.importorskip("torch")
virtual_tp = fragment()
ENTRY = json.loads(json.dumps(plan(FLASH, 3).sidecar_entry()))


def config(**changes: object) -> SimpleNamespace:
    sizes = {"num_attention_heads": 72, "o_groups": 9, "moe_intermediate_size": 2112, "vocab_size": 129280}
    return SimpleNamespace(**{**sizes, "virtual_tp": ENTRY, **changes})


def test_a_config_without_a_plan_is_left_alone():
    stream = iter([("layers.0.attn.wq_b.weight", torch.ones(2, 2))])
    module = SimpleNamespace(config=SimpleNamespace())
    assert virtual_tp.pad_stream(stream, module) is stream
    assert virtual_tp.audit(module) is None
    assert virtual_tp.read_plan(SimpleNamespace()) is None


def test_the_engines_tp_must_be_the_plans():
    made = virtual_tp.read_plan(config())
    virtual_tp.require(made, 3, config())
    with pytest.raises(RuntimeError, match="written for TP=3, but the engine runs TP=2"):
        virtual_tp.require(made, 2, config())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_attention_heads": 64}, "num_attention_heads is 64"),
        ({"o_groups": 8}, "o_groups is 8"),
        ({"vocab_size": 129408}, "vocab_size was padded to 129408"),
        ({"virtual_tp": {**ENTRY, "axes": {**ENTRY["axes"], "shared_intermediate": [2048, 2305]}}}, "does not split"),
        ({"virtual_tp": {**ENTRY, "axes": {"vocabulary": [129280, 129408]}}}, "lacks"),
        ({"virtual_tp": {"tp_size": 3}}, "does not read"),
    ],
)
def test_a_config_that_is_not_the_plans_is_refused(changes: dict, text: str):
    wrong = config(**changes)
    with pytest.raises(RuntimeError, match=text):
        virtual_tp.require(virtual_tp.read_plan(wrong), 3, wrong)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float8_e8m0fnu", "float8_e4m3fn", "bfloat16", "float32"])
def test_padding_is_zero_bytes_in_every_type(dtype: str):
    tensor = torch.ones(64, 4).to(getattr(torch, dtype))
    padded = virtual_tp.pad_tensor(tensor, 0, 2048, 2112)
    assert padded.shape == (66, 4) and padded.dtype == tensor.dtype
    assert torch.equal(padded[:64].view(torch.uint8), tensor.view(torch.uint8))
    assert not padded[64:].contiguous().view(torch.uint8).any()


@st.composite
def padded_axes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """A TP, an axis and its padded size in whole groups of elements, and the elements per storage unit."""
    tp, per_unit = draw(st.integers(2, 24)), draw(st.sampled_from([1, 2, 32, 128]))
    original = draw(st.integers(1, 60))
    local = draw(st.integers(-(-original // tp), original))
    return tp, original * per_unit, local * tp * per_unit, per_unit


@given(padded_axes(), st.integers(0, 1))
def test_the_engines_own_rule_cuts_a_padded_tensor_where_the_plan_says(case: tuple[int, int, int, int], dim: int):
    tp, original, virtual, per_unit = case
    units = original // per_unit
    tensor = (torch.arange(units * 3, dtype=torch.int64) % 255 + 1).to(torch.uint8).view(units, 3)
    tensor = tensor.movedim(0, dim).contiguous()
    padded = virtual_tp.pad_tensor(tensor, dim, original, virtual)
    share = padded.shape[dim] // tp
    real = []
    for shard in split_units(units, original, virtual, tp):
        part = padded.narrow(dim, shard.rank * share, share)
        real.append(part.narrow(dim, 0, shard.stop - shard.start))
        assert not part.narrow(dim, shard.stop - shard.start, shard.zero_tail).any()
        record = virtual_tp.rank_record(tensor, dim, share, shard.rank, False)
        assert (record.units, record.sums[0]) == (shard.stop - shard.start, int(part.sum(dtype=torch.int64)))
    assert torch.equal(torch.cat(real, dim), tensor), "no unit is lost or read twice"


def test_a_ratio_that_is_not_whole_is_refused():
    with pytest.raises(RuntimeError, match="16 x 2112/2048"):
        virtual_tp.pad_tensor(torch.ones(16, 2), 0, 2048, 2112, "shared scale")


@pytest.mark.parametrize(
    "name",
    [
        "layers.3.attn.wq_b.weight",
        "layers.3.attn.wq_b.scale",
        "layers.3.attn.wo_a.weight",
        "layers.3.attn.wo_b.scale",
        "layers.3.ffn.experts.17.w1.weight",
        "layers.3.ffn.experts.17.w2.scale",
        "layers.3.ffn.shared_experts.w3.weight",
        "embed.weight",
        "head.weight",
        "layers.3.attn.indexer.wq_b.weight",
        "layers.3.attn.wq_a.weight",
        "layers.3.ffn.gate.weight",
        "layers.3.ffn.gate.tid2eid",
        "layers.3.attn.compressor.wkv.weight",
        "norm.weight",
    ],
)
def test_the_planner_and_the_patch_agree_on_what_is_cut(name: str):
    assert (tensor_kind(name) is None) == (virtual_tp.find_piece(name) is None)


def test_draft_tensors_are_the_drafts_alone():
    assert virtual_tp.find_piece("mtp.0.attn.wq_b.weight") is None
    assert virtual_tp.find_piece("mtp.0.attn.wq_b.weight", 43) == virtual_tp.Piece(43, "wq_b", "weight")
    assert virtual_tp.find_piece("layers.0.attn.wq_b.weight", 43) is None
    assert virtual_tp.find_piece("embed.weight", 43) is None
    assert virtual_tp.find_piece("mtp.1.head.weight", 43) == virtual_tp.Piece(44, "head", "weight")
    assert virtual_tp.find_piece("mtp.0.emb.tok_emb.weight", 43) == virtual_tp.Piece(-1, "embed", "weight")
    assert virtual_tp.find_piece("mtp.1.emb.tok_emb.weight", 43) is None, "only the first one's is loaded"
    assert virtual_tp.find_piece("mtp.2.markov_head.weight", 43) is None


@pytest.mark.parametrize("stale", [False, True])
def test_a_stale_row_behind_the_drafts_own_vocabulary_is_found(stale: bool):
    source = torch.arange(1, 129281).float()[:, None]
    buffer = torch.zeros(43136, 1)
    buffer[:43008] = source[86272:]
    buffer[43100] = float(stale)
    piece = virtual_tp.find_piece("mtp.0.head.weight", 43)
    records = {piece: virtual_tp.rank_record(source, 0, 43136, 2, True)}
    ((pieces, block, dim),) = virtual_tp._blocks("model.layers.43.shared_head.head.weight", buffer)
    found = virtual_tp._block_problems("head", pieces, block, dim, records)
    assert [("the padding behind unit 43008" in text) for text in found] == [True] * stale


def test_rank_records_cover_the_checkpoint_once():
    made = virtual_tp.read_plan(config())
    assert [made.real("routed_intermediate", rank) for rank in range(3)] == [704, 704, 640]
    assert [made.real("attention_heads", rank) for rank in range(3)] == [24, 24, 16]
    tensor = torch.arange(1024, dtype=torch.int64).view(1, 1024).to(torch.uint8)
    records = [virtual_tp.rank_record(tensor, 1, 352, rank, False) for rank in range(3)]
    assert [record.units for record in records] == [352, 352, 320]
    assert sum(record.sums[0] for record in records) == int(tensor.sum())


def blocks(rank: int = 2):
    tensor = torch.randint(1, 255, (4, 1024), dtype=torch.uint8)
    piece = virtual_tp.Piece(0, "w2", "weight", 0)
    records = {piece: virtual_tp.rank_record(tensor, 1, 352, rank, False)}
    buffer = torch.zeros(1, 4, 384, dtype=torch.uint8)
    buffer[0, :, :320] = tensor[:, 704:]
    return piece, records, buffer


def faults(piece, records, buffer) -> list[str]:
    return virtual_tp._block_problems("w2", (piece,), buffer, 2, records)


def test_the_audit_is_content_with_a_right_buffer():
    assert faults(*blocks()) == []


def test_the_audit_finds_a_stale_byte_in_the_padding():
    piece, records, buffer = blocks()
    buffer[0, 3, 383] = 1
    assert "the padding behind unit 320 is not zero" in faults(piece, records, buffer)[0]


def test_the_audit_finds_a_range_that_was_never_filled():
    piece, records, buffer = blocks()
    buffer[0, :, 10:20] = 0
    assert "is not the checkpoint's range" in faults(piece, records, buffer)[0]


def test_the_audit_finds_a_range_shifted_by_one():
    piece, records, buffer = blocks()
    buffer[0, :, :320] = buffer[0, :, :320].roll(1, dims=1)
    assert faults(piece, records, buffer), "the sum of all bytes is the same, those of the edges are not"


def test_the_audit_finds_a_tensor_that_never_came():
    piece, _, buffer = blocks()
    assert "was never loaded" in faults(piece, {}, buffer)[0]


def test_the_vocabulary_is_padded_only_where_tp_asks_for_it():
    assert [virtual_tp.vocab_padding(64, tp) for tp in (1, 2, 4, 8, 3, 5)] == [64, 64, 64, 64, 192, 320]


def test_the_patch_covers_the_versions_and_nothing_above():
    patch = read_patch(ROOT / "patches/virtual-tp")
    assert [patch.supports(version) for version in ("0.28.0", "0.30.0", "0.32.0", "0.33.0")] == [True] * 4
    assert not patch.supports("0.34.0")
    assert "virtual-tp" in patch.remedies


def test_the_gpu_test_runs_the_projects_own_plan():
    assert json.loads((ROOT / "tests/gpu/plan-flash-tp3.json").read_text()) == json.loads(
        json.dumps(plan_document(plan(FLASH, 3)))
    )
