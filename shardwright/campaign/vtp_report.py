"""A virtual plan as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import asdict

from shardwright.plan.virtual_tp import VirtualPlan

_GIB = 1 << 30


def plan_json(plan: VirtualPlan) -> dict[str, Any]:
    """The plan with its field names as they are; sizes of axes in elements, of shards in their own unit."""
    return {
        "tp": plan.tp,
        "axes": {name: asdict(axis) for name, axis in plan.axes.items()},
        "shards": [
            {"tensor": shard.tensor, "unit": shard.unit, "ranks": [asdict(rank) for rank in shard.ranks]}
            for shard in plan.shards
        ],
        "idle_ranks": {"attention": list(plan.idle.attention), "experts": list(plan.idle.experts)},
        "ratios": [asdict(ratio) for ratio in plan.ratios],
        "memory_bytes_per_rank": {**asdict(plan.memory), "known": plan.memory.known},
    }


def plan_lines(plan: VirtualPlan) -> Iterator[str]:
    """The shape table, the cuts of every rank, the ratios that are not whole, idle ranks and memory."""
    sizes = plan.sizes
    yield f"{sizes.source}: {sizes.model_type} at TP={plan.tp}"
    yield ""
    yield f"{'axis':<20} {'original':>9} {'virtual':>9} {'per rank':>9} {'kernel':>9}"
    for name, axis in plan.axes.items():
        yield f"{name:<20} {axis.original:>9} {axis.virtual:>9} {axis.local:>9} {axis.kernel_local:>9}"
    yield ""
    yield "cuts per rank, [start, stop) of the checkpoint + padding, in the tensor's own unit"
    for shard in plan.shards:
        cuts = "  ".join(f"[{rank.start}, {rank.stop})+{rank.zero_tail}" for rank in shard.ranks)
        yield f"  {shard.tensor:<26} {shard.unit:<13} {cuts}"
    yield ""
    yield from _ratio_lines(plan)
    yield from _idle_lines(plan)
    yield from _memory_lines(plan)


def _ratio_lines(plan: VirtualPlan) -> Iterator[str]:
    odd = [ratio for ratio in plan.ratios if not ratio.exact]
    if not odd:
        yield "all ratios are whole in every unit"
    for ratio in odd:
        note = "" if ratio.needed else "; the engine pads this tensor itself, by its own axis"
        yield (
            f"not whole: {ratio.tensor} by the ratio of {ratio.axis}: "
            f"{ratio.units} -> {ratio.padded} {ratio.unit}{note}"
        )


def _idle_lines(plan: VirtualPlan) -> Iterator[str]:
    for what, ranks in (("attention head", plan.idle.attention), ("expert row", plan.idle.experts)):
        if ranks:
            yield f"ranks without a real {what}: {', '.join(map(str, ranks))}"
    if not plan.idle.attention and not plan.idle.experts:
        yield "every rank holds real heads and real expert rows"


def _memory_lines(plan: VirtualPlan) -> Iterator[str]:
    memory = plan.memory
    over = 100 * (memory.routed_kernel / memory.routed_even - 1)
    yield (
        f"weights per rank: routed experts {memory.routed_kernel / _GIB:.2f} GiB by the kernel's width "
        f"({memory.routed_logical / _GIB:.2f} by the plan, {memory.routed_even / _GIB:.2f} evenly; {over:+.1f} %), "
        f"attention {memory.attention / _GIB:.2f}, shared experts {memory.shared / _GIB:.2f}, "
        f"vocabulary {memory.vocabulary / _GIB:.2f}, MTP layers where they are on {memory.draft / _GIB:.2f}"
    )
    if memory.replicated is None:
        yield "what every rank holds whole is not counted: the checkpoint's headers are not on this host"
    else:
        yield f"held whole by every rank: {memory.replicated / _GIB:.2f} GiB; sum {memory.known / _GIB:.2f} GiB"
