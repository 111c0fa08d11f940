"""Run every gate over a deployment."""

from __future__ import annotations

from msgspec import Struct

from shardwright.facts.facts import Facts
from shardwright.facts.spec_support import SpecTable
from shardwright.gates.attention import check_attention_backend
from shardwright.gates.cards import (
    check_card_capability,
    check_custom_all_reduce_topology,
    check_free_memory,
    check_uneven_cards,
)
from shardwright.gates.container import (
    check_confinement,
    check_port,
    check_restart_policy,
    check_shared_memory,
    check_ulimits,
)
from shardwright.gates.dense_attention import check_dense_attention
from shardwright.gates.devices import check_device_selection
from shardwright.gates.drafts import check_draft_settings
from shardwright.gates.engine import check_custom_all_reduce, check_owned_flags, check_ready_timeout
from shardwright.gates.environment import check_engine_variables
from shardwright.gates.finding import Finding, Overall, by_severity, overall_verdict
from shardwright.gates.flags import check_flags, with_full_names
from shardwright.gates.front_end import check_front_end
from shardwright.gates.hidden import check_batch_size, check_config_file
from shardwright.gates.history import check_compile_cache, check_earlier_log
from shardwright.gates.host import check_disk, check_driver, check_host_memory
from shardwright.gates.image import check_image_reference
from shardwright.gates.index_sharing import check_index_sharing
from shardwright.gates.indexer_weights import check_indexer_weights
from shardwright.gates.kv_transfer import check_kv_transfer
from shardwright.gates.model_settings import check_model_settings
from shardwright.gates.moe_backends import check_moe_backend
from shardwright.gates.mounts import check_mounts, check_overlay_permissions
from shardwright.gates.nccl import check_nccl
from shardwright.gates.network import check_master_address, check_world_size
from shardwright.gates.nodes import check_nodes_agree
from shardwright.gates.options import env_of
from shardwright.gates.packed_shards import check_packed_shards
from shardwright.gates.parallelism import (
    check_capacity_flags,
    check_context_parallel,
    check_expert_parallel,
    check_hybrid_stages,
    check_tensor_parallel,
)
from shardwright.gates.partition import check_layer_partition
from shardwright.gates.patches import check_patches
from shardwright.gates.pipeline import check_pipeline_support
from shardwright.gates.pool import check_kv_pool
from shardwright.gates.positions import check_max_model_len
from shardwright.gates.quantisation import check_quantisation
from shardwright.gates.runner import check_model_runner
from shardwright.gates.security import check_remote_code, check_secrets
from shardwright.gates.speculation import check_speculation
from shardwright.gates.status import check_status, check_waivers
from shardwright.gates.virtual_tp import check_virtual_tp
from shardwright.gates.weights import check_weights
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
    check_pipeline_support,
    check_index_sharing,
    check_custom_all_reduce,
    check_ready_timeout,
    check_owned_flags,
    check_flags,
    check_config_file,
    check_batch_size,
    check_engine_variables,
    check_model_runner,
    check_draft_settings,
    check_tensor_parallel,
    check_packed_shards,
    check_expert_parallel,
    check_context_parallel,
    check_hybrid_stages,
    check_front_end,
    check_model_settings,
    check_kv_transfer,
    check_world_size,
    check_master_address,
    check_nodes_agree,
    check_attention_backend,
    check_dense_attention,
    check_moe_backend,
    check_indexer_weights,
    check_card_capability,
    check_quantisation,
    check_free_memory,
    check_uneven_cards,
    check_host_memory,
    check_driver,
    check_disk,
    check_custom_all_reduce_topology,
    check_nccl,
    check_device_selection,
    check_shared_memory,
    check_ulimits,
    check_image_reference,
    check_mounts,
    check_overlay_permissions,
    check_secrets,
    check_remote_code,
    check_port,
    check_restart_policy,
    check_confinement,
    check_compile_cache,
    check_earlier_log,
    check_capacity_flags,
    check_patches,
    check_virtual_tp,
    check_weights,
    check_max_model_len,
    check_kv_pool,
    check_waivers,
    check_status,
)

# The gates to which it matters how a flag is written.
_JUDGE_SPELLING = (check_owned_flags, check_flags)


def assess(deployment: Deployment, facts: Facts, table: SpecTable) -> Assessment:
    """Plan the stages and run every gate; none stops another."""
    plan = plan_stages(deployment, facts)
    full = with_full_names(deployment, facts)
    findings = [
        finding for gate in GATES for finding in gate(deployment if gate in _JUDGE_SPELLING else full, plan, facts)
    ]
    findings += check_speculation(full, plan, facts, table, _runner(deployment))
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
    pair = env_of(deployment, RUNNER_ENV)
    return effective_runner(deployment.platform, deployment.engine.vllm, pair.value if pair else None)
