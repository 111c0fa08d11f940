"""`kv-transfer`: a KV connector has a role, and one that there is."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import json_of
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "kv-transfer"

_ROLES = ("kv_producer", "kv_consumer", "kv_both")


def check_kv_transfer(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """vLLM config/kv_transfer.py KVTransferConfig.__post_init__."""
    asked = json_of(deployment, "--kv-transfer-config")
    role = asked.get("kv_role")
    if role in _ROLES or (role is None and asked.get("kv_connector") is None):
        return []
    text = f"there is no kv_role {role!r}" if role else "kv_transfer_config names a connector without kv_role"
    why, fix = "the engine stops while it reads its settings", f"kv_role: one of {', '.join(_ROLES)}"
    return [Finding(GATE, "reject", text, why=why, fix=fix)]
