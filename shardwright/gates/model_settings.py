"""`model-settings`: the engine takes the model in the dtype that is asked for, and serves the model's own weights."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.model_support import computes_in_half
from shardwright.gates.finding import Finding
from shardwright.gates.options import value_of
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "model-settings"

_HALF = ("half", "float16")


def check_model_settings(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    findings = []
    if value_of(deployment, "--load-format") == "dummy":
        why = "the weights are random numbers: the server answers, and no answer means anything"
        text, fix = "load_format dummy reads no weights", "remove serve.load_format"
        # While a layout is tried out, step times may be all that is asked for.
        findings.append(Finding(GATE, "reject" if deployment.status == "ready" else "warn", text, why=why, fix=fix))
    dtype, shape = value_of(deployment, "--dtype"), facts.shape
    if dtype in _HALF and shape and computes_in_half(shape.model_type, deployment.engine.vllm) is False:
        text = f"{shape.model_type} does not compute in float16, and dtype is {dtype}"
        why = "its numbers overflow there; the engine raises 'does not support float16'"
        findings.append(Finding(GATE, "reject", text, why=why, fix="serve: {dtype: bfloat16}, or float32 on old cards"))
    return findings
