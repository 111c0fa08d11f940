"""`deploy vtp plan`: the shape table and the cuts that were worked out for DeepSeek-V4 at odd sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.campaign.vtp.report import plan_lines
from shardwright.errors import DeployError, UsageError
from shardwright.plan.storage_units import rank_bytes, reassembled
from tests.unit.helpers import Result
from tests.unit.vtp.vtp_samples import FLASH, PRO, plan, small_checkpoint, small_tensors, write_safetensors

AXES = ("attention_heads", "output_groups", "routed_intermediate", "shared_intermediate", "vocabulary")


def cuts(data: dict, tensor: str) -> list[tuple[int, int, int]]:
    (shard,) = [shard for shard in data["shards"] if shard["tensor"] == tensor]
    assert [rank["rank"] for rank in shard["ranks"]] == list(range(data["tp"]))
    return [(rank["start"], rank["stop"], rank["zero_tail"]) for rank in shard["ranks"]]


def test_the_audited_shape_table_at_tp3(cli: Callable[..., Result]):
    data = cli("vtp", "plan", "deepseek-v4-flash", "--tp", "3", "--json").data
    assert data["tp"] == 3
    assert {name: tuple(axis.values()) for name, axis in data["axes"].items()} == {
        "attention_heads": (64, 72, 24, 32),
        "output_groups": (8, 9, 3, 3),
        "routed_intermediate": (2048, 2112, 704, 768),
        "shared_intermediate": (2048, 2304, 768, 768),
        "vocabulary": (129280, 129408, 43136, 43136),
    }
    assert list(data["axes"]["vocabulary"]) == ["original", "virtual", "local", "kernel_local"]


def test_packed_bytes_and_scale_groups_are_cut_in_their_own_unit(cli: Callable[..., Result]):
    data = cli("vtp", "plan", "dsv4flash-tp3-lucifer", "--json").data
    assert cuts(data, "experts.w13.weight") == [(0, 704, 64), (704, 1408, 64), (1408, 2048, 128)]
    assert cuts(data, "experts.w13.scale") == [(0, 704, 64), (704, 1408, 64), (1408, 2048, 128)]
    assert cuts(data, "experts.w2.weight") == [(0, 352, 32), (352, 704, 32), (704, 1024, 64)]
    assert cuts(data, "experts.w2.scale") == [(0, 22, 2), (22, 44, 2), (44, 64, 4)]


def test_attention_and_vocabulary_leave_their_padding_to_the_last_rank(cli: Callable[..., Result]):
    data = cli("vtp", "plan", "deepseek-v4-flash", "--tp", "3", "--json").data
    assert cuts(data, "attn.wq_b.weight") == [(0, 12288, 0), (12288, 24576, 0), (24576, 32768, 4096)]
    assert cuts(data, "attn.wo_a.weight") == [(0, 3072, 0), (3072, 6144, 0), (6144, 8192, 1024)]
    assert cuts(data, "attn.wo_b.weight") == [(0, 3072, 0), (3072, 6144, 0), (6144, 8192, 1024)]
    assert cuts(data, "attn.wq_b.scale") == [(0, 96, 0), (96, 192, 0), (192, 256, 32)]
    assert cuts(data, "attn.attn_sink") == [(0, 24, 8), (24, 48, 8), (48, 64, 16)]
    assert cuts(data, "embed.weight") == [(0, 43136, 0), (43136, 86272, 0), (86272, 129280, 128)]
    assert cuts(data, "shared_experts.w13.weight") == [(0, 768, 0), (768, 1536, 0), (1536, 2048, 256)]


@pytest.mark.parametrize(
    ("tp", "sizes", "idle"),
    [
        (5, (80, 10, 2080, 2560, 129280), (4,)),
        (6, (96, 12, 2112, 2304, 129408), (4, 5)),
        (7, (112, 14, 2240, 2688, 129472), (4, 5, 6)),
        (9, (72, 9, 2304, 2304, 129600), (8,)),
        (10, (80, 10, 2240, 2560, 129280), (8, 9)),
    ],
)
def test_other_sizes_of_flash(tp: int, sizes: tuple[int, ...], idle: tuple[int, ...]):
    made = plan(FLASH, tp)
    assert tuple(made.axes[name].virtual for name in AXES) == sizes
    assert made.idle.attention == idle
    assert made.idle.experts == ((8,) if tp == 9 else ())


def test_pro_at_tp3_pads_heads_groups_and_vocabulary_only():
    made = plan(PRO, 3)
    assert tuple(made.axes[name].virtual for name in AXES) == (144, 18, 3072, 3072, 129408)
    assert made.idle.attention == ()


@pytest.mark.parametrize("config", [FLASH, PRO], ids=["flash", "pro"])
@pytest.mark.parametrize("tp", range(2, 25))
def test_every_size_from_2_to_24_splits_exactly(config: dict, tp: int):
    made = plan(config, tp)
    heads, groups = made.axes["attention_heads"], made.axes["output_groups"]
    assert heads.virtual * groups.original == heads.original * groups.virtual, "a group keeps its heads"
    for name, axis in made.axes.items():
        assert axis.virtual == axis.local * tp >= axis.original, name
        assert axis.kernel_local >= axis.local, name
    assert made.inexact == ()
    assert len(made.shards) == len({shard.tensor for shard in made.shards}) == 17
    for shard in made.shards:
        assert shard.ranks[0].start == 0
        assert all(one.stop == other.start for one, other in zip(shard.ranks, shard.ranks[1:], strict=False))
        assert len({rank.buffer for rank in shard.ranks}) == 1, "every rank builds the same buffers"
        source = bytes(unit % 255 + 1 for unit in range(shard.ranks[-1].stop))
        buffers = [rank_bytes(source, rank, 1) for rank in shard.ranks]
        assert reassembled(buffers, shard.ranks, 1) == source
        assert sum(map(len, buffers)) - sum(buffer.count(0) for buffer in buffers) == len(source)


@pytest.mark.parametrize("tp", range(2, 25))
def test_the_engine_pads_shared_experts_to_the_same_width(tp: int):
    # vLLM DeepseekV4MLP rounds the blocks of the padded routed width up to a multiple of TP.
    made = plan(FLASH, tp)
    blocks = math.ceil(made.axes["routed_intermediate"].virtual // 128 / tp)
    assert made.axes["shared_intermediate"].virtual == blocks * 128 * tp


def test_the_ratio_that_is_not_whole_is_named(cli: Callable[..., Result]):
    out = cli("vtp", "plan", "deepseek-v4-flash", "--tp", "3").out
    assert "not whole by routed_intermediate's ratio; the engine pads these by their own:" in out
    assert "shared_experts.w13.scale: 16 -> 16.5 scale blocks" in out
    assert "every rank holds real heads and real expert rows" in out


def test_a_ratio_that_the_padding_needs_is_said_to_stop_this_tp():
    out = "\n".join(plan_lines(plan({**FLASH, "expert_dtype": "fp8"}, 3)))
    assert "not whole by routed_intermediate's ratio; this TP cannot pad these:\n  experts.w13.scale: 16 -> 16.5" in out


def test_the_text_shows_the_cuts_as_the_audit_wrote_them(cli: Callable[..., Result]):
    rows = [line.split() for line in cli("vtp", "plan", "deepseek-v4-flash", "--tp", "3").out.splitlines()]
    assert ["routed_intermediate", "2048", "2112", "704", "768"] in rows
    assert ["experts.w13.weight", "rows", "2048", "0/704/1408", "64/64/128"] in rows
    assert ["experts.w2.weight", "packed", "bytes", "1024", "0/352/704", "32/32/64"] in rows
    assert ["experts.w2.scale", "E8M0", "groups", "64", "0/22/44", "2/2/4"] in rows


def test_many_ranks_alike_are_counted():
    rows = [line.split() for line in plan_lines(plan(FLASH, 24))]
    assert ["attn.wq_b.weight", "rows", "32768", "0/4096/..", "0", "x8/4096", "x16"] in rows
    assert ["experts.w2.scale", "E8M0", "groups", "64", "0/3/..", "1", "x21/3/4/4"] in rows
    assert ["ranks", "without", "a", "real", "attention", "head:", "8", "to", "23"] in rows
    assert ["ranks", "without", "a", "real", "attention", "head:", "4"] in [
        line.split() for line in plan_lines(plan(FLASH, 5))
    ]


@pytest.mark.parametrize("config", [FLASH, PRO], ids=["flash", "pro"])
@pytest.mark.parametrize("tp", range(2, 25))
def test_the_text_fits_a_terminal_of_80_columns(config: dict, tp: int):
    assert max(map(len, plan_lines(plan(config, tp)))) <= 80


def test_the_sum_of_memory_says_what_it_lacks(cli: Callable[..., Result], tmp_path: Path):
    bare = cli("vtp", "plan", "deepseek-v4-flash", "--tp", "3").out
    assert "the sum lacks what every rank holds whole" in bare and "held whole" not in bare
    whole = cli("vtp", "plan", str(small_checkpoint(tmp_path / "model")), "--tp", "3").out
    assert "held whole" in whole and "the sum lacks" not in whole


def test_memory_counts_the_kernels_width():
    memory = plan(FLASH, 3).memory
    assert round(memory.routed_even / 1e9, 2) == 49.06
    assert round(memory.routed_logical / 1e9, 2) == 50.59
    assert round(memory.routed_kernel / 1e9, 2) == 55.19
    assert memory.replicated is None


@pytest.mark.parametrize("tp", ["1", "25"])
def test_a_size_outside_the_worked_range_is_refused(cli: Callable[..., Result], tp: str):
    result = cli("vtp", "plan", "deepseek-v4-flash", "--tp", tp)
    assert result.code == 64
    assert "outside 2 to 24" in result.err


def test_a_model_that_is_not_padded_is_refused(cli: Callable[..., Result]):
    result = cli("vtp", "plan", "glm-5.3-w4a16", "--tp", "3")
    assert result.code == 1
    assert "error:" in result.err and "Traceback" not in result.err


def test_a_missing_size_is_named():
    with pytest.raises(DeployError, match="o_groups is missing"):
        plan({key: value for key, value in FLASH.items() if key != "o_groups"}, 3)


def test_a_bare_checkpoint_needs_a_size(cli: Callable[..., Result], tmp_path: Path):
    result = cli("vtp", "plan", str(small_checkpoint(tmp_path / "model")))
    assert result.code == 64
    assert "--tp" in result.err


def test_a_padded_model_brings_its_own_size(cli: Callable[..., Result]):
    one = cli("vtp", "plan", "deepseek-v4-flash-tp3", "--json").data
    assert one == cli("vtp", "plan", "deepseek-v4-flash", "--tp", "3", "--json").data
    assert cli("vtp", "plan", "deepseek-v4-flash-tp3", "--tp", "5", "--json").data["tp"] == 5


def test_a_name_of_nothing_is_said_to_be_none_and_the_nearest_layout_is_named(cli: Callable[..., Result]):
    result = cli("vtp", "plan", "dsv4flash-tp3-lucifr", "--tp", "3")
    assert result.code == 64
    assert "no folder of a checkpoint, no model of configs/models and no layout" in result.err
    assert "did you mean 'dsv4flash-tp3-lucifer'?" in result.err


def test_a_folder_without_a_config_is_said_to_have_none(cli: Callable[..., Result], tmp_path: Path):
    result = cli("vtp", "plan", str(tmp_path), "--tp", "3")
    assert result.code == 64
    assert f"{tmp_path} has no config.json" in result.err


def test_pro_is_known_by_name(cli: Callable[..., Result]):
    axes = cli("vtp", "plan", "deepseek-v4-pro", "--tp", "6", "--json").data["axes"]
    assert tuple(axes["attention_heads"].values()) == (128, 144, 24, 32)
    assert tuple(axes["routed_intermediate"].values()) == (3072, 3072, 512, 512)


def test_units_come_from_the_checkpoints_headers(cli: Callable[..., Result], tmp_path: Path):
    data = cli("vtp", "plan", str(small_checkpoint(tmp_path / "model")), "--tp", "3", "--json").data
    assert cuts(data, "experts.w2.weight") == [(0, 32, 96), (32, 64, 96), (64, 64, 128)]
    assert data["idle_ranks"]["experts"] == [2]
    indexer, norm, gate = 7 * 4, 8, 2 * 8
    assert data["memory_bytes_per_rank"]["replicated"] == 2 * (indexer + norm + gate)


def test_a_checkpoint_whose_tensors_are_not_what_its_config_says_is_refused(tmp_path: Path, cli: Callable[..., Result]):
    folder = small_checkpoint(tmp_path / "model")
    tensors = {**small_tensors(), "layers.0.ffn.experts.1.w2.weight": ("U8", (8, 32), 1)}
    write_safetensors(folder / "model.safetensors", tensors)
    result = cli("vtp", "plan", str(folder), "--tp", "3")
    assert result.code == 1
    assert "layers.0.ffn.experts.1.w2.weight has the shape [8, 32], but 64 columns were expected" in result.err


def test_a_checkpoint_without_a_split_tensor_is_refused(tmp_path: Path, cli: Callable[..., Result]):
    folder = small_checkpoint(tmp_path / "model")
    tensors = {name: entry for name, entry in small_tensors().items() if "wo_a" not in name}
    write_safetensors(folder / "model.safetensors", tensors)
    assert "has no attn.wo_a.weight" in cli("vtp", "plan", str(folder), "--tp", "3").err


def test_json_is_one_document(cli: Callable[..., Result]):
    assert set(json.loads(cli("vtp", "plan", "deepseek-v4-flash", "--tp", "3", "--json").out)) >= {
        "tp",
        "axes",
        "shards",
    }


def test_the_range_is_checked_before_anything_is_computed():
    with pytest.raises(UsageError):
        plan(FLASH, 0)
