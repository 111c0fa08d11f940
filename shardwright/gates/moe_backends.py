"""`moe-backend`: the kernels for experts that the layout names exist on the cards."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.kernels import MOE_BACKENDS
from shardwright.facts.versions import READ, version_in
from shardwright.gates.capabilities import capabilities_of
from shardwright.gates.finding import Finding
from shardwright.gates.options import value_of
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "moe-backend"


def check_moe_backend(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    named = value_of(deployment, "--moe-backend")
    if named is None or deployment.platform != "cuda" or not version_in(deployment.engine.vllm, READ):
        return []
    name = named.lower().replace("-", "_")
    kinds = MOE_BACKENDS.get(name)
    capabilities, source = capabilities_of(deployment, facts)
    lacking = [text for text in capabilities if kinds is not None and not any(cards.hold(text) for cards in kinds)]
    if not lacking:
        return []
    text = f"the MoE backend {name} does not run on compute capability {', '.join(lacking)}"
    why = "the engine raises 'does not support the deployment configuration' while it builds the first expert layer"
    return [Finding(GATE, "reject", text, why=why, fix="leave moe_backend out", evidence=source)]
