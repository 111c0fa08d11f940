"""`status` and `waivers`: what the layout says of itself, and the waivers that it names."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

KNOWN_WAIVERS = ("unverified-pp", "trust-remote-code", "small-shm", "idle-ranks")


def check_status(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    missing = deployment.missing_proof or "the layout does not say which"
    if deployment.status == "rejected":
        return [Finding("status", "reject", f"the layout {deployment.name} is rejected: {missing}")]
    if deployment.status == "testing":
        return [Finding("status", "info", f"the layout {deployment.name} is in testing; missing proof: {missing}")]
    return []


def check_waivers(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    findings = []
    for waiver in deployment.waivers:
        if waiver not in KNOWN_WAIVERS:
            from difflib import get_close_matches

            near = get_close_matches(waiver, KNOWN_WAIVERS)
            fix = f"did you mean {near[0]}?" if near else f"known waivers: {', '.join(KNOWN_WAIVERS)}"
            text = f"there is no waiver called {waiver!r}"
            findings.append(
                Finding("waivers", "reject", text, why="a waiver that waives nothing hides a typo", fix=fix)
            )
    return findings
