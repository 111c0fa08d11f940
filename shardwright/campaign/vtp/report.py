"""A virtual plan as JSON and as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import asdict

from shardwright.plan.virtual_tp import Shard, VirtualPlan

_GIB = 1 << 30
_LISTED_STARTS = 4


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
    yield from _cut_lines(plan.shards)
    yield ""
    yield from _ratio_lines(plan)
    yield from _idle_lines(plan)
    yield ""
    yield from _memory_lines(plan)


def _cut_lines(shards: Sequence[Shard]) -> Iterator[str]:
    yield "where each rank's range of the checkpoint starts, and the zeros behind it in the"
    yield "rank's buffer, both in the tensor's own unit"
    rows = [("tensor", "unit", "units", "starts", "zero tails")]
    rows += [(shard.tensor, shard.unit, str(shard.ranks[-1].stop), _starts(shard), _tails(shard)) for shard in shards]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for tensor, unit, units, starts, tails in rows:
        yield f"{tensor:<{widths[0]}}  {unit:<{widths[1]}} {units:>{widths[2]}}  {starts:<{widths[3]}}  {tails}"


def _starts(shard: Shard) -> str:
    """`0/704/1408`; from the third of many ranks on they go on in the same steps, up to the last unit."""
    starts = [str(rank.start) for rank in shard.ranks]
    return "/".join(starts if len(starts) <= _LISTED_STARTS else [*starts[:2], ".."])


def _tails(shard: Shard) -> str:
    """`64/64/128`; three or more ranks alike are counted, as in `0 x8/4096 x16`."""
    runs = [(tail, len(list(ranks))) for tail, ranks in groupby(rank.zero_tail for rank in shard.ranks)]
    return "/".join(f"{tail} x{count}" if count > 2 else "/".join([str(tail)] * count) for tail, count in runs)


def _ratio_lines(plan: VirtualPlan) -> Iterator[str]:
    odd = [ratio for ratio in plan.ratios if not ratio.exact]
    if not odd:
        yield "all ratios are whole in every unit"
    for (axis, needed), ratios in groupby(odd, key=lambda ratio: (ratio.axis, ratio.needed)):
        note = "this TP cannot pad these" if needed else "the engine pads these by their own"
        yield f"not whole by {axis}'s ratio; {note}:"
        for ratio in ratios:
            yield f"  {ratio.tensor}: {ratio.units} -> {ratio.padded} {ratio.unit}"


def _idle_lines(plan: VirtualPlan) -> Iterator[str]:
    for what, ranks in (("attention head", plan.idle.attention), ("expert row", plan.idle.experts)):
        if ranks:
            yield f"ranks without a real {what}: {_span(ranks)}"
    if not plan.idle.attention and not plan.idle.experts:
        yield "every rank holds real heads and real expert rows"


def _span(ranks: Sequence[int]) -> str:
    """Idle ranks are always the last ones."""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"


def _memory_lines(plan: VirtualPlan) -> Iterator[str]:
    memory = plan.memory
    over = 100 * (memory.routed_kernel / memory.routed_even - 1)
    rows: Iterable[tuple[str, int, str]] = [
        ("routed experts", memory.routed_kernel, f"at the kernel's width, {over:+.1f} % over an even split"),
        ("  by the plan", memory.routed_logical, ""),
        ("  split evenly", memory.routed_even, ""),
        ("attention", memory.attention, ""),
        ("shared experts", memory.shared, ""),
        ("vocabulary", memory.vocabulary, "embedding and head"),
        ("MTP layers", memory.draft, "where they are on; not in the sum"),
    ]
    if memory.replicated is not None:
        rows = [*rows, ("held whole", memory.replicated, "by every rank")]
    yield "weights per rank      GiB"
    for name, size_bytes, note in [*rows, ("sum", memory.known, "")]:
        yield f"{name:<16} {size_bytes / _GIB:>8.2f}  {note}".rstrip()
    if memory.replicated is None:
        yield "the sum lacks what every rank holds whole: the checkpoint is not on this host"
