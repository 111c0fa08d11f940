"""`pp-dsa`: no pipeline stage starts on a layer that reuses a sparse-attention index of another stage."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.facts.facts import Facts
from shardwright.facts.model import IndexRule, ModelFacts
from shardwright.gates.finding import Finding
from shardwright.overlay.patch import Patch
from shardwright.plan.index_sharing import full_layers, nearest_aligned_split
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "pp-dsa"
WAIVER = "unverified-pp"
REMEDY = "pp-orphans"
RECOMPUTE_REMEDY = "pp-orphans-by-recompute"

_VERIFIED_STAGES = 2
_MEASURED = (
    "measured on GLM-5.3 with PP=4 and 20,20,20,18: 20 % of answers degenerate without speculation, 45 % with MTP"
)


def check_index_sharing(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    stages = deployment.parallel.pipeline
    if stages == 1:
        return []
    if facts.model is None:
        text = f"whether PP={stages} cuts a group of layers that share an index is not known: no model config here"
        return [Finding(GATE, "unknown", text, fix="set model.facts, or run where model.path exists")]
    rule = facts.model.index_rule
    if rule is None or len(full_layers(rule, facts.model.num_layers)) == facts.model.num_layers:
        return []
    if not plan.stages:
        text = "orphan layers cannot be counted before the partition is right"
        return [Finding(GATE, "unknown", text)] if not _too_many_stages(stages) else [_too_deep(deployment, plan, rule)]
    findings = _orphan_findings(deployment, plan, facts, rule, facts.model)
    if _too_many_stages(stages):
        findings = [_too_deep(deployment, plan, rule), *findings]
    if WAIVER in deployment.waivers:
        findings = [_waived(finding) if finding.verdict == "reject" else finding for finding in findings]
    return findings


def _too_many_stages(stages: int) -> bool:
    return stages > _VERIFIED_STAGES


def _too_deep(deployment: Deployment, plan: Plan, rule: IndexRule) -> Finding:
    stages = deployment.parallel.pipeline
    split = _text(plan.partition)
    if not plan.stages:
        state = "the split cannot be judged"
    elif plan.orphans:
        state = f"the split {split} has orphan layers {_text(plan.orphans)}"
    else:
        state = f"the split {split} has no orphan layers"
    return Finding(
        GATE,
        "reject",
        f"PP={stages} has not been verified on a model that shares indices ({state})",
        why=_MEASURED,
        fix=_ways_out(
            deployment, plan, rule, f"accept it for research with ALLOW_UNVERIFIED_PP=1 or allow: [{WAIVER}]"
        ),
        evidence=_evidence(plan),
    )


def _orphan_findings(
    deployment: Deployment, plan: Plan, facts: Facts, rule: IndexRule, model: ModelFacts
) -> list[Finding]:
    orphans = plan.orphans
    if not orphans or any(_covers(patch, model) for patch in deployment.patches):
        return []
    recompute = next((patch.id for patch in deployment.patches if RECOMPUTE_REMEDY in patch.remedies), None)
    if recompute is not None:
        return [_recompute(recompute, orphans, facts, model)]
    count = f"{len(orphans)} orphan layer{'s' if len(orphans) > 1 else ''}"
    where = "; ".join(
        f"stage {stage.index} starts on layer {stage.first_layer} and reads unwritten rows in {_text(stage.orphans)}"
        for stage in plan.stages
        if stage.orphans
    )
    return [
        Finding(
            GATE,
            "reject",
            f"{count} with the split {_text(plan.partition)}: {where}",
            why="those layers reuse an index that their stage never computed; measured with 39,39: 21 of 100 answers "
            f"degenerate, 0 of 120 at PP=1; {_MEASURED}",
            fix=_ways_out(deployment, plan, rule, "use PP=1, where the sharing stays on one rank"),
            evidence=_evidence(plan),
        )
    ]


def _covers(patch: Patch, model: ModelFacts) -> bool:
    """Whether a patch remedies orphans of this very model: the edits must lie in the code that serves it."""
    return REMEDY in patch.remedies and (not patch.reach.models or model.architecture in patch.reach.models)


def _recompute(patch: str, orphans: Sequence[int], facts: Facts, model: ModelFacts) -> Finding:
    caveat = "recomputed indices do not equal PP=1 beyond index_topk tokens"
    if facts.checkpoint is None:
        text = f"{patch} makes layers {_text(orphans)} compute; whether they have indexer weights is not known"
        return Finding(GATE, "unknown", text, why=caveat, fix="run where model.path exists, or use pp-index-transport")
    missing = [layer for layer in orphans if not facts.checkpoint.has_indexer(layer)]
    if missing:
        return Finding(
            GATE,
            "reject",
            f"{patch} makes layers {_text(missing)} compute, but the checkpoint has no indexer weights for them",
            why="on a quantised checkpoint the engine runs them on uninitialised memory without an error",
            fix="use an aligned split, or patches: [pp-index-transport]",
            evidence=facts.checkpoint.source,
        )
    return Finding(
        GATE,
        "warn",
        f"{patch} makes layers {_text(orphans)} compute their own index: {caveat}",
        fix="prefer an aligned split or patches: [pp-index-transport]",
        evidence=facts.checkpoint.source,
    )


def _ways_out(deployment: Deployment, plan: Plan, rule: IndexRule, last: str) -> str:
    ways = []
    if plan.stages:
        aligned = nearest_aligned_split(rule, plan.partition)
        if aligned is not None and aligned != plan.partition:
            ways.append(_aligned(aligned, deployment.parallel.pipeline))
        elif aligned is not None:
            ways.append("PP=2 on an aligned split")
    if any(REMEDY in patch.remedies for patch in deployment.patches):
        ways.append("PP=2, where the layout's index transport patch covers the boundary")
    else:
        ways.append("carry the rows across the boundary with patches: [pp-index-transport]")
    ways.append(last)
    return "; or ".join(f"({index}) {way}" for index, way in enumerate(ways, 1))


def _aligned(split: Sequence[int], stages: int) -> str:
    waiver = " with ALLOW_UNVERIFIED_PP=1" if _too_many_stages(stages) else ""
    return f"the nearest split without orphan layers, PP_LAYER_PARTITION={_text(split)}{waiver}"


def _waived(finding: Finding) -> Finding:
    return Finding(
        finding.gate,
        "warn",
        f"waived by {WAIVER}: {finding.message}",
        why=finding.why,
        fix="after the start run: deploy degen",
        evidence=finding.evidence,
    )


def _evidence(plan: Plan) -> str:
    return (
        f"stages {', '.join(f'[{stage.first_layer},{stage.end_layer})' for stage in plan.stages)}"
        if plan.stages
        else ""
    )


def _text(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)
