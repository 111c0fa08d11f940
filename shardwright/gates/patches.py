"""`patches`: the patches that a layout names exist, fit the engine and fit each other."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "patches"


def check_patches(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    findings = [_missing(name) for name in deployment.unknown_patches]
    version, platform = deployment.engine.vllm, deployment.platform
    names = {name for patch in deployment.patches for name in (patch.id, *patch.aliases)}
    for patch in deployment.patches:
        if not patch.supports(version):
            findings.append(
                Finding(
                    GATE,
                    "reject",
                    f"the patch {patch.id} has no edits for vLLM {version}, only for {' and '.join(patch.ranges())}",
                    why="starting without it would serve the fault that it mends",
                    fix="deploy patch list, or use an engine version that the patch covers",
                )
            )
        if patch.platforms and platform not in patch.platforms:
            text = f"the patch {patch.id} is for {', '.join(patch.platforms)}, but the engine runs on {platform}"
            findings.append(Finding(GATE, "reject", text, fix=f"remove {patch.id} from patches"))
        for needed in patch.requires:
            if needed not in names:
                text = f"the patch {patch.id} requires {needed}, which the layout does not name"
                findings.append(Finding(GATE, "reject", text, fix=f"add {needed} to patches"))
        for other in patch.conflicts:
            if other in names:
                text = f"the patches {patch.id} and {other} exclude each other"
                findings.append(Finding(GATE, "reject", text, fix="keep one of the two"))
    return findings


def _missing(name: str) -> Finding:
    return Finding(
        GATE,
        "reject",
        f"the patch {name} does not exist here",
        why="the layout is wrong or unsafe on a stock engine without it",
        fix="deploy patch list shows the known ones",
    )
