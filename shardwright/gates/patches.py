"""`patches`: the patches that a layout names exist, fit the engine and fit each other."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.served_code import idle_code
from shardwright.gates.finding import Finding
from shardwright.overlay.patch import Patch
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
        findings += _without_effect(deployment, patch, facts)
    return findings


def _without_effect(deployment: Deployment, patch: Patch, facts: Facts) -> list[Finding]:
    """Edits that apply to code which this model does not run: applied is not in effect."""
    version, platform = deployment.engine.vllm, deployment.platform
    if facts.model is None or not patch.supports(version):
        return []
    architecture = facts.model.architecture
    if architecture and patch.reach.models and architecture not in patch.reach.models:
        text = f"the patch {patch.id} is for {' and '.join(patch.reach.models)}, and the model is {architecture}"
        why = "its edits apply to the engine, and this model does not run through them"
        return [Finding(GATE, "info", text, why=why, fix=f"remove {patch.id} from patches")]
    findings = []
    for edit in patch.edits_for(version):
        idle = idle_code(architecture, platform, version, edit.module, edit.symbol)
        if idle is None or (edit.required_on is not None and platform not in edit.required_on):
            continue
        place = f"{edit.module}:{edit.symbol}" if edit.symbol else edit.module
        findings.append(
            Finding(
                GATE,
                "reject",
                f"the edit {edit.id} of the patch {patch.id} changes {place}, which {architecture} does not run on "
                f"{platform} in vLLM {version}",
                why=f"its code is in {idle.instead}: the edit applies, and the fault that it mends stays",
                fix=f"deploy patch check {patch.id}, and add a variant for the code that runs",
            )
        )
    return findings


def _missing(name: str) -> Finding:
    return Finding(
        GATE,
        "reject",
        f"the patch {name} does not exist here",
        why="the layout is wrong or unsafe on a stock engine without it",
        fix="deploy patch list shows the known ones",
    )
