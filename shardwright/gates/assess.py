"""Run every gate over a deployment."""

from __future__ import annotations

from msgspec import Struct

from shardwright.facts.facts import Facts
from shardwright.facts.spec_support import SpecTable
from shardwright.gates.attention import check_attention_backend
from shardwright.gates.engine import check_custom_all_reduce, check_owned_flags, check_ready_timeout
from shardwright.gates.finding import Finding, Overall, by_severity, overall_verdict
from shardwright.gates.index_sharing import check_index_sharing
from shardwright.gates.partition import check_layer_partition
from shardwright.gates.patches import check_patches
from shardwright.gates.speculation import check_speculation
from shardwright.gates.status import check_status, check_waivers
from shardwright.plan.partition import PartitionError, default_partition, parse_partition
from shardwright.plan.stages import Plan, build_stages
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.rules import RUNNER_ENV, effective_runner


class Assessment(Struct, frozen=True):
    """The plan of a deployment and what all gates say of it, refusals first."""

    plan: Plan
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Overall:
        return overall_verdict(self.findings)

    @property
    def refused(self) -> bool:
        return self.verdict == "reject"


GATES = (
    check_layer_partition,
    check_index_sharing,
    check_custom_all_reduce,
    check_ready_timeout,
    check_owned_flags,
    check_attention_backend,
    check_patches,
    check_waivers,
    check_status,
)


def assess(deployment: Deployment, facts: Facts, table: SpecTable) -> Assessment:
    """Plan the stages and run every gate; none stops another."""
    plan = plan_stages(deployment, facts)
    findings = [finding for gate in GATES for finding in gate(deployment, plan, facts)]
    findings += check_speculation(deployment, plan, facts, table, _runner(deployment))
    return Assessment(plan, by_severity(findings))


def plan_stages(deployment: Deployment, facts: Facts) -> Plan:
    """Stages from the hand partition or the engine's default split; without stages where neither can be had."""
    if facts.model is None:
        return Plan()
    layers, stages = facts.model.num_layers, deployment.parallel.pipeline
    if deployment.partition is None:
        if stages > layers:
            return Plan(partition_error=f"PP={stages} exceeds {layers} layers")
        return Plan(build_stages(default_partition(layers, stages), facts.model.index_rule))
    try:
        counts = parse_partition(deployment.partition)
    except PartitionError as error:
        return Plan(partition_error=str(error))
    if len(counts) != stages or sum(counts) != layers:
        return Plan(partition_error=f"{deployment.partition} does not split {layers} layers into {stages} stages")
    return Plan(build_stages(counts, facts.model.index_rule))


def _runner(deployment: Deployment) -> str:
    pinned = next((pair.value for pair in deployment.env if pair.name == RUNNER_ENV), "")
    return effective_runner(deployment.platform, deployment.engine.vllm, pinned)
