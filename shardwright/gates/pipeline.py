"""`pipeline-parallel`: the model, and what else the layout asks for, go with pipeline parallelism at all."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.model_support import splits_into_stages
from shardwright.gates.finding import Finding
from shardwright.gates.options import json_of, switched_on
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "pipeline-parallel"

# Switches that the engine refuses with more than one stage, vLLM config/vllm.py and config/parallel.py.
_SWITCHES = ("--enable-elastic-ep", "--enable-return-routed-experts")
_HISPARSE = "hisparse_config"


def check_pipeline_support(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    stages, version = deployment.parallel.pipeline, deployment.engine.vllm
    if stages == 1 or deployment.engine.command is not None:
        return []
    asked = [flag for flag in _SWITCHES if switched_on(deployment, flag)]
    if json_of(deployment, "--attention-config").get(_HISPARSE) is not None:
        asked.append(f"--attention-config.{_HISPARSE}")
    findings = [
        Finding(
            GATE, "reject", f"{flag} does not go with PP={stages}", why="the engine raises", fix=f"PP=1, or no {flag}"
        )
        for flag in asked
    ]
    if facts.shape is not None and splits_into_stages(facts.shape.architecture, version) is False:
        text = f"{facts.shape.architecture} cannot be split into {stages} stages in vLLM {version}"
        why = "the engine raises 'Pipeline parallelism is not supported for this model', or its stages cannot talk"
        findings.append(Finding(GATE, "reject", text, why=why, fix="PP=1, with TP or more replicas"))
    return findings
