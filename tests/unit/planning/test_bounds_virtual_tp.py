"""Odd tensor parallelism to the unit: every kind of tensor, every byte of memory, every size at its border."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import astuple, replace

from shardwright.errors import DeployError
from shardwright.plan.virtual_sizes import Alignment, ModelSizes, alignment_for, model_sizes
from shardwright.plan.virtual_tp import expected_tensors, make_plan, plan_axes
from tests.unit.vtp.vtp_samples import FLASH, table

SIZES = ModelSizes(
    source="test",
    model_type="test",
    layers=3,
    draft_layers=2,
    hidden=10,
    heads=8,
    head_dim=64,
    groups=4,
    query_rank=6,
    output_rank=64,
    experts=5,
    routed=256,
    shared_experts=2,
    vocabulary=1000,
    expert_format="fp4",
    fp8_block=128,
)
ALIGNMENT = Alignment(routed=32, shared=128, vocabulary=64, heads=(), kernel_intermediate=128)
PLAIN = replace(SIZES, expert_format="bf16", fp8_block=0)
HEADS, GROUPS, ROUTED, SHARED = "attention_heads", "output_groups", "routed_intermediate", "shared_intermediate"
ATTENTION = [
    ("attn.wq_b.weight", HEADS, 0, 512, "rows", False, True),
    ("attn.wo_a.weight", GROUPS, 0, 256, "rows", False, True),
    ("attn.wo_b.weight", GROUPS, 1, 256, "columns", False, True),
    ("attn.attn_sink", HEADS, 0, 8, "heads", True, False),
]
ATTENTION_SCALES = [
    ("attn.wq_b.scale", HEADS, 0, 4, "scale blocks", False, True),
    ("attn.wo_a.scale", GROUPS, 0, 2, "scale blocks", False, True),
    ("attn.wo_b.scale", GROUPS, 1, 2, "scale blocks", False, True),
]
FP4_EXPERTS = [
    ("experts.w13.weight", ROUTED, 0, 256, "rows", True, True),
    ("experts.w13.scale", ROUTED, 0, 256, "rows", True, True),
    ("experts.w2.weight", ROUTED, 1, 128, "packed bytes", True, True),
    ("experts.w2.scale", ROUTED, 1, 8, "E8M0 groups", True, True),
]
EXPERTS = [
    ("experts.w13.weight", ROUTED, 0, 256, "rows", True, True),
    ("experts.w2.weight", ROUTED, 1, 256, "columns", True, True),
]
EXPERT_SCALES = [
    ("experts.w13.scale", ROUTED, 0, 2, "scale blocks", True, True),
    ("experts.w2.scale", ROUTED, 1, 2, "scale blocks", True, True),
]
VOCABULARY = [
    ("embed.weight", "vocabulary", 0, 1000, "rows", False, False),
    ("head.weight", "vocabulary", 0, 1000, "rows", False, False),
]
SHARED_SCALES = [
    ("shared_experts.w13.scale", SHARED, 0, 4, "scale blocks", False, False),
    ("shared_experts.w2.scale", SHARED, 1, 4, "scale blocks", False, False),
]


def shared(*, padded: bool) -> list[tuple[Any, ...]]:
    return [
        ("shared_experts.w13.weight", SHARED, 0, 512, "rows", False, padded),
        ("shared_experts.w2.weight", SHARED, 1, 512, "columns", False, padded),
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (SIZES, ATTENTION + ATTENTION_SCALES + FP4_EXPERTS + shared(padded=False) + SHARED_SCALES),
        (PLAIN, ATTENTION + EXPERTS + shared(padded=True)),
        (
            replace(SIZES, expert_format="fp8"),
            ATTENTION + ATTENTION_SCALES + EXPERTS + EXPERT_SCALES + shared(padded=False) + SHARED_SCALES,
        ),
        (replace(PLAIN, expert_format="fp8"), ATTENTION + EXPERTS + shared(padded=True)),
        (
            replace(SIZES, expert_format="bf16"),
            ATTENTION + ATTENTION_SCALES + EXPERTS + shared(padded=False) + SHARED_SCALES,
        ),
        (replace(PLAIN, shared_experts=0), ATTENTION + EXPERTS),
    ],
    ids=["fp4", "bf16", "fp8", "fp8 without blocks", "bf16 experts", "no shared experts"],
)
def test_every_tensor_is_split_along_its_own_axis_and_unit(sizes: ModelSizes, expected: list[tuple[Any, ...]]) -> None:
    assert [astuple(tensor) for tensor in expected_tensors(sizes)] == expected + VOCABULARY


def test_the_axes_of_a_small_model() -> None:
    assert {name: astuple(axis) for name, axis in plan_axes(SIZES, 3, ALIGNMENT).items()} == {
        "attention_heads": (8, 12, 4, 4),
        "output_groups": (4, 6, 2, 2),
        "routed_intermediate": (256, 288, 96, 128),
        "shared_intermediate": (256, 384, 128, 128),
        "vocabulary": (1000, 1152, 384, 384),
    }
    assert plan_axes(PLAIN, 3, ALIGNMENT)["shared_intermediate"].local == 96


def test_a_kernel_without_a_width_of_its_own_rounds_nothing_up() -> None:
    bare = Alignment(routed=1, shared=1, vocabulary=1, heads=(), kernel_intermediate=0)
    assert astuple(plan_axes(replace(PLAIN, routed=255), 3, bare)["routed_intermediate"]) == (255, 255, 85, 85)


@pytest.mark.parametrize(("supported", "kernel"), [((), 4), ((4, 8), 4), ((8, 5), 5), ((8, 2), 8)])
def test_the_kernel_takes_the_smallest_count_of_heads_that_holds_a_ranks(
    supported: tuple[int, ...], kernel: int
) -> None:
    assert plan_axes(SIZES, 3, replace(ALIGNMENT, heads=supported))["attention_heads"].kernel_local == kernel


def test_more_heads_than_the_kernel_takes_are_refused() -> None:
    with pytest.raises(DeployError, match="4 attention heads per rank are more than the 3"):
        plan_axes(SIZES, 3, replace(ALIGNMENT, heads=(2, 3)))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # A rank holds 19,200 elements of attention and 7,680 of shared experts per layer.
        (SIZES, (20_400, 22_950, 30_600, 57_600, 23_040, 15_360, 2 * (10_200 + 26_880))),
        (replace(SIZES, expert_format="fp8"), (38_400, 43_200, 57_600, 57_600, 23_040, 15_360, 2 * (19_200 + 26_880))),
        (PLAIN, (76_800, 86_400, 115_200, 115_200, 34_560, 15_360, 2 * (38_400 + 2 * 24_960))),
    ],
    ids=["fp4", "fp8", "bf16"],
)
def test_the_memory_of_a_rank_to_the_byte(sizes: ModelSizes, expected: tuple[int, ...]) -> None:
    memory = make_plan(sizes, 3, ALIGNMENT).memory
    assert astuple(memory) == (*expected, None)
    assert memory.known == sum(expected[2:6])
    assert make_plan(sizes, 3, ALIGNMENT, replicated_bytes=7).memory.known == sum(expected[2:6]) + 7


def test_the_sidecar_says_what_the_patch_reads() -> None:
    assert make_plan(SIZES, 3, ALIGNMENT).sidecar_entry() == {
        "schema": 1,
        "tp_size": 3,
        "axes": {
            "attention_heads": [8, 12],
            "output_groups": [4, 6],
            "routed_intermediate": [256, 288],
            "shared_intermediate": [256, 384],
            "vocabulary": [1000, 1152],
        },
    }


def test_only_the_ratio_that_nobody_uses_is_not_needed() -> None:
    plan = make_plan(SIZES, 3, ALIGNMENT)
    traps = [(ratio.tensor, ratio.axis, ratio.padded) for ratio in plan.ratios if not ratio.needed]
    assert traps == [
        ("shared_experts.w13.weight", ROUTED, "576"),
        ("shared_experts.w2.weight", ROUTED, "576"),
        ("shared_experts.w13.scale", ROUTED, "4.5"),
        ("shared_experts.w2.scale", ROUTED, "4.5"),
    ]
    assert len(plan.ratios) == len(expected_tensors(SIZES)) + len(traps)
    assert plan.inexact == ()
    assert [ratio for ratio in make_plan(PLAIN, 3, ALIGNMENT).ratios if not ratio.needed] == []


def without(*keys: str, **changes: Any) -> dict[str, Any]:
    return {**{key: value for key, value in FLASH.items() if key not in keys}, **changes}


def test_what_a_config_may_leave_out_counts_as_none() -> None:
    bare = model_sizes(
        without("model_type", "num_nextn_predict_layers", "n_shared_experts", "expert_dtype", "quantization_config"),
        "c",
    )
    assert (bare.model_type, bare.draft_layers, bare.shared_experts) == ("", 0, 0)
    assert (bare.expert_format, bare.fp8_block) == ("bf16", 0)
    assert model_sizes(without("expert_dtype"), "c").expert_format == "fp4"
    assert model_sizes(without(expert_dtype="fp8"), "c").expert_format == "fp8"


@pytest.mark.parametrize(
    ("block", "size"), [([128, 64], 128), ([64, 128], 64), ([32], 32), ([], 0), (["x", 128], 0), (128, 0), (None, 0)]
)
def test_the_blocks_of_a_scale_are_read_from_the_first_number(block: Any, size: int) -> None:
    config = without(quantization_config={"weight_block_size": block})
    assert model_sizes(config, "c").fp8_block == size


@pytest.mark.parametrize(("key", "least"), [("num_hidden_layers", 1), ("num_nextn_predict_layers", 0)])
def test_sizes_begin_at_one_and_counts_of_extras_at_none(key: str, least: int) -> None:
    assert model_sizes(without(**{key: least}), "c") is not None
    for wrong in (least - 1, True, "3", 1.5):
        with pytest.raises(DeployError, match=f"{key} is "):
            model_sizes(without(**{key: wrong}), "c")


@pytest.mark.parametrize(
    ("attention", "moe", "unknown"),
    [
        ("NONE", "flashinfer_cutlass", "attention backend NONE"),
        ("FLASHINFER_MLA_SPARSE_DSV4", "none", "MoE backend none"),
        ("NONE", "none", "attention backend NONE"),
    ],
)
def test_the_backend_without_an_alignment_is_the_one_that_is_named(attention: str, moe: str, unknown: str) -> None:
    with pytest.raises(DeployError, match=unknown):
        alignment_for(table(), "deepseek_v4", attention, moe, "0.30.0")
