"""`packed-shards`: the parts of a packed linear layer are as wide as the engine's kernels take them."""

from __future__ import annotations

import re

from shardwright.facts.facts import Facts
from shardwright.facts.packed import PackedLinear
from shardwright.facts.versions import version_in
from shardwright.gates.finding import Finding
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "packed-shards"
# A patch with this remedy pads what is too narrow.
REMEDY = "sub-tile-shards"
_TILE_COLUMNS = 64
# From this release on the engine pads narrow parts itself.
_PADS = ">=0.24"
_BY_INPUTS = re.compile(r"\.(o_proj|down_proj|out_proj|w2|wo|dense_4h_to_h)$")
_WHOLE = re.compile(r"\.(q_a_proj|kv_a_proj_with_mqa|fused_qkv_a_proj|gate|k_proj|v_proj)$|\.indexer\.")
# Layers that the engine runs as one.
_MERGED = (("in_proj_a", "in_proj_b"), ("gate_proj", "up_proj"))


def check_packed_shards(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    tensor = deployment.parallel.tensor
    if tensor == 1 or version_in(deployment.engine.vllm, _PADS):
        return []
    if any(REMEDY in patch.remedies for patch in deployment.patches):
        return []
    widths = {linear.name: linear.outputs for linear in facts.packed}
    return [
        Finding(
            GATE,
            "reject",
            f"{linear.name}: {linear.outputs} columns / {tensor} = {linear.outputs / tensor:g}, not a multiple of 64",
            why="the engine raises 'output_size_per_partition is not divisible by min_thread_n = 64'",
            fix="a smaller TP, vLLM 0.24 or later, which pads, or a patch that pads",
        )
        for linear in facts.packed
        if _split_by_outputs(linear) and _with_partners(linear, widths) % (tensor * _TILE_COLUMNS)
    ]


def _split_by_outputs(linear: PackedLinear) -> bool:
    return not _BY_INPUTS.search(linear.name) and not _WHOLE.search(linear.name)


def _with_partners(linear: PackedLinear, widths: dict[str, int]) -> int:
    stem, dot, last = linear.name.rpartition(".")
    for names in _MERGED:
        if last in names:
            return sum(widths.get(f"{stem}{dot}{name}", 0) for name in names)
    return linear.outputs
