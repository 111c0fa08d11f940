"""Virtual tensor parallelism: a model's axes padded so that they divide by a TP that they do not fit.

Sizes follow the padding that vLLM's DeepSeek-V4 loader accepts (models/deepseek_v4/attention.py, nvidia/model.py,
vocab_parallel_embedding.py): whole output groups per rank, routed experts in MXFP4 scale groups of 32, shared experts
in FP8 blocks of 128, the vocabulary in whole multiples of 64 and TP. Pure arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from shardwright.errors import DeployError, UsageError
from shardwright.plan.storage_units import NotWholeError, RankShard, split_units
from shardwright.plan.virtual_sizes import Alignment, ModelSizes

MIN_TP, MAX_TP = 2, 24


class Axis(Struct, frozen=True):
    """One padded axis in elements: whole, padded whole, per rank, and per rank as the kernel runs it."""

    original: int
    virtual: int
    local: int
    kernel_local: int


class TensorAxis(Struct, frozen=True):
    """One kind of tensor and its axis that is split: `units` storage units, called `unit`.

    `kernel` marks a buffer that is as wide as the kernel wants it, not only as wide as the rank's share. `padded` is
    False for what the engine pads by itself.
    """

    tensor: str
    axis: str
    dim: int
    units: int
    unit: str
    kernel: bool = False
    padded: bool = True


class Shard(Struct, frozen=True):
    tensor: str
    unit: str
    ranks: tuple[RankShard, ...]


class Ratio(Struct, frozen=True):
    """Whether one axis can be padded exactly in one unit. `needed` is False where the engine pads in another way."""

    tensor: str
    axis: str
    unit: str
    units: int
    padded: str
    exact: bool
    needed: bool


class IdleRanks(Struct, frozen=True):
    """Ranks that would hold no real attention head, and no real row of any routed expert."""

    attention: tuple[int, ...]
    experts: tuple[int, ...]


class RankMemory(Struct, frozen=True):
    """Bytes of weights on each rank; `routed` as an even split of the unpadded experts, by the plan, by the kernel."""

    routed_even: int
    routed_logical: int
    routed_kernel: int
    attention: int
    shared: int
    vocabulary: int
    draft: int
    """The split weights of the draft layers, loaded only where MTP or DSpark is on."""
    replicated: int | None
    """All other tensors but the draft's; None where the checkpoint's headers are not at hand."""

    @property
    def known(self) -> int:
        """What is known of the target model; the draft comes on top."""
        return self.routed_kernel + self.attention + self.shared + self.vocabulary + (self.replicated or 0)


class VirtualPlan(Struct, frozen=True):
    tp: int
    sizes: ModelSizes
    axes: Mapping[str, Axis]
    shards: tuple[Shard, ...]
    ratios: tuple[Ratio, ...]
    idle: IdleRanks
    memory: RankMemory

    @property
    def inexact(self) -> tuple[Ratio, ...]:
        """Ratios that the padding needs and that are not whole."""
        return tuple(ratio for ratio in self.ratios if ratio.needed and not ratio.exact)

    def sidecar_entry(self) -> dict[str, Any]:
        """What the sidecar's config.json says under `virtual_tp`; the patch in the engine reads it."""
        return {
            "schema": 1,
            "tp_size": self.tp,
            "axes": {name: [axis.original, axis.virtual] for name, axis in self.axes.items()},
        }


def check_tp(tp: int) -> None:
    """UsageError unless `tp` lies in the range that the plan was worked through for."""
    if not MIN_TP <= tp <= MAX_TP:
        raise UsageError(f"--tp {tp} is outside {MIN_TP} to {MAX_TP}", fix="the plan is worked through for that range")


def plan_axes(sizes: ModelSizes, tp: int, alignment: Alignment) -> dict[str, Axis]:
    """The five axes at `tp`. DeployError when the attention kernels do not take a rank's heads."""
    heads_per_group = sizes.heads // sizes.groups
    groups = _align(sizes.groups, tp)
    heads = groups * heads_per_group // tp
    routed = _align(math.ceil(sizes.routed / tp), alignment.routed)
    shared = _align(math.ceil(sizes.routed / tp), alignment.shared if sizes.fp8_block else alignment.routed)
    vocabulary = _align(sizes.vocabulary, math.lcm(alignment.vocabulary, tp))
    return {
        "attention_heads": Axis(sizes.heads, heads * tp, heads, _kernel_heads(heads, alignment.heads)),
        "output_groups": Axis(sizes.groups, groups, groups // tp, groups // tp),
        "routed_intermediate": Axis(
            sizes.routed, routed * tp, routed, _align(routed, max(1, alignment.kernel_intermediate))
        ),
        "shared_intermediate": Axis(sizes.routed, shared * tp, shared, shared),
        "vocabulary": Axis(sizes.vocabulary, vocabulary, vocabulary // tp, vocabulary // tp),
    }


def expected_tensors(sizes: ModelSizes) -> tuple[TensorAxis, ...]:
    """The kinds of tensors that are split, with the units in which such a checkpoint stores them."""
    rows, ranks = sizes.heads * sizes.head_dim, sizes.groups * sizes.output_rank
    tensors = [
        TensorAxis("attn.wq_b.weight", "attention_heads", 0, rows, "rows"),
        TensorAxis("attn.wo_a.weight", "output_groups", 0, ranks, "rows"),
        TensorAxis("attn.wo_b.weight", "output_groups", 1, ranks, "columns"),
        TensorAxis("attn.attn_sink", "attention_heads", 0, sizes.heads, "heads", kernel=True, padded=False),
    ]
    if sizes.fp8_block:
        tensors += [
            TensorAxis("attn.wq_b.scale", "attention_heads", 0, rows // sizes.fp8_block, "scale blocks"),
            TensorAxis("attn.wo_a.scale", "output_groups", 0, ranks // sizes.fp8_block, "scale blocks"),
            TensorAxis("attn.wo_b.scale", "output_groups", 1, ranks // sizes.fp8_block, "scale blocks"),
        ]
    tensors += _expert_tensors(sizes)
    if sizes.shared_experts:
        tensors += _shared_tensors(sizes)
    tensors += [
        TensorAxis("embed.weight", "vocabulary", 0, sizes.vocabulary, "rows", padded=False),
        TensorAxis("head.weight", "vocabulary", 0, sizes.vocabulary, "rows", padded=False),
    ]
    return tuple(tensors)


def make_plan(
    sizes: ModelSizes,
    tp: int,
    alignment: Alignment,
    tensors: Sequence[TensorAxis] | None = None,
    replicated_bytes: int | None = None,
) -> VirtualPlan:
    """The whole plan. `tensors` come from the checkpoint's headers where they are at hand, else from the sizes.

    A ratio that is not whole does not stop the plan; it is listed in `ratios` and its tensor has no shards.
    """
    check_tp(tp)
    axes = plan_axes(sizes, tp, alignment)
    shards, ratios = [], []
    for tensor in expected_tensors(sizes) if tensors is None else tensors:
        axis = axes[tensor.axis]
        kernel = axis.kernel_local if tensor.kernel else None
        ratios.append(_ratio(tensor, axis))
        if tensor.axis == "shared_intermediate" and not tensor.padded:
            # Listed because it is the trap: the ratio of the routed experts does not fit the shared expert's blocks.
            ratios.append(
                _ratio(replace(tensor, axis="routed_intermediate"), axes["routed_intermediate"], needed=False)
            )
        try:
            ranks = split_units(tensor.units, axis.original, axis.virtual, tp, kernel)
        except NotWholeError:
            continue
        shards.append(Shard(tensor.tensor, tensor.unit, tuple(ranks)))
    return VirtualPlan(
        tp=tp,
        sizes=sizes,
        axes=axes,
        shards=tuple(shards),
        ratios=tuple(ratios),
        idle=IdleRanks(_idle(axes["attention_heads"], tp), _idle(axes["routed_intermediate"], tp)),
        memory=_memory(sizes, axes, tp, replicated_bytes),
    )


def _expert_tensors(sizes: ModelSizes) -> list[TensorAxis]:
    axis, width = "routed_intermediate", sizes.routed
    if sizes.expert_format == "fp4":
        return [
            TensorAxis("experts.w13.weight", axis, 0, width, "rows", kernel=True),
            TensorAxis("experts.w13.scale", axis, 0, width, "rows", kernel=True),
            TensorAxis("experts.w2.weight", axis, 1, width // 2, "packed bytes", kernel=True),
            TensorAxis("experts.w2.scale", axis, 1, width // 32, "E8M0 groups", kernel=True),
        ]
    tensors = [
        TensorAxis("experts.w13.weight", axis, 0, width, "rows", kernel=True),
        TensorAxis("experts.w2.weight", axis, 1, width, "columns", kernel=True),
    ]
    if sizes.expert_format == "fp8" and sizes.fp8_block:
        blocks = width // sizes.fp8_block
        tensors += [
            TensorAxis("experts.w13.scale", axis, 0, blocks, "scale blocks", kernel=True),
            TensorAxis("experts.w2.scale", axis, 1, blocks, "scale blocks", kernel=True),
        ]
    return tensors


def _shared_tensors(sizes: ModelSizes) -> list[TensorAxis]:
    axis, width = "shared_intermediate", sizes.routed * sizes.shared_experts
    by_engine = bool(sizes.fp8_block)
    tensors = [
        TensorAxis("shared_experts.w13.weight", axis, 0, width, "rows", padded=not by_engine),
        TensorAxis("shared_experts.w2.weight", axis, 1, width, "columns", padded=not by_engine),
    ]
    if by_engine:
        blocks = width // sizes.fp8_block
        tensors += [
            TensorAxis("shared_experts.w13.scale", axis, 0, blocks, "scale blocks", padded=False),
            TensorAxis("shared_experts.w2.scale", axis, 1, blocks, "scale blocks", padded=False),
        ]
    return tensors


def _ratio(tensor: TensorAxis, axis: Axis, *, needed: bool = True) -> Ratio:
    padded, rest = divmod(tensor.units * axis.virtual, axis.original)
    shown = f"{tensor.units * axis.virtual / axis.original:g}" if rest else str(padded)
    return Ratio(tensor.tensor, tensor.axis, tensor.unit, tensor.units, shown, not rest, needed)


def _idle(axis: Axis, tp: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(tp) if rank * axis.local >= axis.original)


def _memory(sizes: ModelSizes, axes: Mapping[str, Axis], tp: int, replicated: int | None) -> RankMemory:
    routed, heads, groups = axes["routed_intermediate"], axes["attention_heads"], axes["output_groups"]
    linear_bytes = 1 if sizes.fp8_block else 2
    # Three matrices of hidden x width per expert; MXFP4 takes half a byte and a 32nd of a scale byte per element.
    thirty_seconds = {"fp4": 17, "fp8": 32}.get(sizes.expert_format, 64)
    per_column = sizes.experts * 3 * sizes.hidden * thirty_seconds
    query = sizes.query_rank * heads.local * sizes.head_dim
    down = groups.local * sizes.output_rank * (sizes.heads // sizes.groups) * sizes.head_dim
    up = groups.local * sizes.output_rank * sizes.hidden
    shared = axes["shared_intermediate"].local * sizes.shared_experts * 3 * sizes.hidden
    layer = per_column * routed.kernel_local // 32 + (query + down + up + shared) * linear_bytes
    return RankMemory(
        routed_even=sizes.layers * per_column * routed.original // tp // 32,
        routed_logical=sizes.layers * per_column * routed.local // 32,
        routed_kernel=sizes.layers * per_column * routed.kernel_local // 32,
        attention=sizes.layers * (query + down + up) * linear_bytes,
        shared=sizes.layers * shared * linear_bytes,
        vocabulary=2 * axes["vocabulary"].local * sizes.hidden * 2,
        draft=sizes.draft_layers * layer,
        replicated=replicated,
    )


def _kernel_heads(heads: int, supported: Sequence[int]) -> int:
    if not supported:
        return heads
    fitting = [count for count in supported if count >= heads]
    if not fitting:
        raise DeployError(
            f"{heads} attention heads per rank are more than the {max(supported)} that the attention kernels take",
            fix="use a larger --tp or another attention backend",
        )
    return min(fitting)


def _align(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
