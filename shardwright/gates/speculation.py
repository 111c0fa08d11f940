"""`pp-mtp` and `pp-ngram`: the speculative method works under pipeline parallelism in this engine version."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.spec_support import SpecRule, SpecTable
from shardwright.gates.finding import Finding, Verdict
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

LOOKUP_METHODS = frozenset({"ngram", "ngram_gpu", "suffix"})


def check_speculation(deployment: Deployment, plan: Plan, facts: Facts, table: SpecTable, runner: str) -> list[Finding]:
    """One finding where the method is refused, broken, unverified or unknown; none where it works or PP is 1."""
    speculation, stages = deployment.speculation, deployment.parallel.pipeline
    if not speculation.active or stages == 1:
        return []
    gate = "pp-ngram" if speculation.method in LOOKUP_METHODS else "pp-mtp"
    version = deployment.engine.vllm
    model_type = facts.model.model_type if facts.model else ""
    row = table.lookup(speculation.family, version, model_type, runner)
    asked = f"{speculation.method} with PP={stages} on vLLM {version}"
    if row is None:
        known = speculation.family in table.methods()
        what = f"whether {asked} works is not known" if known else f"{speculation.method!r} is not a known method"
        fix = "" if known else f"known methods: {', '.join(table.methods())}; or SPEC_METHOD=none"
        return [Finding(gate, "unknown", what, fix=fix, evidence=str(speculation.origin))]
    if row.support == "works":
        return []
    if row.support == "unverified":
        return [_finding(gate, "warn", f"{asked} is unverified", row, speculation.method, "run: deploy degen")]
    return [_finding(gate, "reject", f"{asked} does not work", row, speculation.method, _way_out(runner))]


def _finding(gate: str, verdict: Verdict, message: str, row: SpecRule, method: str, fix: str) -> Finding:
    why = row.why.replace("<method>", method)
    return Finding(gate, verdict, message, why=why, fix=fix, evidence=row.versions)


def _way_out(runner: str) -> str:
    if runner == "v1":
        return "SPEC_METHOD=none, or let the rule pin model runner V2 (remove FORCE_V2_RUNNER=0)"
    return "SPEC_METHOD=none, or SPEC_METHOD=auto to let the topology decide"
