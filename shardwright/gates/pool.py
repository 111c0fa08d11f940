"""`kv-pool`: one request of max_model_len fits the pool that the planner predicts, or that an earlier start logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import misread, value_of
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.flags import FITTED_LENGTHS

if TYPE_CHECKING:
    from shardwright.plan.kv_pool import PoolPlan, StagePool
    from shardwright.resolve.capacity import Capacity

GATE = "kv-pool"

_WHY = "the engine makes this check after it has loaded the weights, minutes into the start, and then exits"
# The one start that was measured against a calibration of another KV dtype came within 0.1 %.
CONVERTED_MARGIN = 0.03


def check_kv_pool(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """Silent where nothing says how much memory there is: `deploy plan` says what is missing."""
    if not _memory_may_be_known(deployment, facts):
        return []
    # The planner costs start-up time, which layouts without a word on memory need not pay.
    from shardwright.plan.kv_pages import UnknownPagesError
    from shardwright.resolve.capacity import capacity_of

    if value_of(deployment, "--max-model-len") in FITTED_LENGTHS:
        return []
    try:
        logged = _logged(deployment, facts)
    except UsageError as error:
        return misread(GATE, error, facts)
    if logged or not plan.stages:
        return logged
    try:
        capacity = capacity_of(deployment, facts)
    except UnknownPagesError:
        return []
    except UsageError as error:
        return misread(GATE, error, facts)
    pool = capacity.plan(plan.partition)
    if pool.fits_one_request is not False:
        return []
    if pool.basis == "converted" and _nearly_fits(pool):
        text = f"the pool is predicted at {pool.pool_tokens:,} tokens, below max_model_len {pool.max_model_len:,}"
        why = f"the calibration had another kv_cache_dtype and may be off by {CONVERTED_MARGIN:.0%}: it refuses nothing"
        return [Finding(GATE, "info", text, why=why, fix=f"deploy plan {deployment.name}")]
    if pool.basis == "estimated":
        text = f"the pool is estimated at {pool.pool_tokens:,} tokens, below max_model_len {pool.max_model_len:,}"
        why = "overheads were measured at another TP or PP, so this refuses nothing"
        return [Finding(GATE, "info", text, why=why, fix=f"deploy plan {deployment.name}")]
    return [_refused(deployment, capacity, pool)]


def _nearly_fits(pool: PoolPlan) -> bool:
    assert pool.blocks is not None and pool.request_blocks is not None
    return pool.blocks * (1 + CONVERTED_MARGIN) >= pool.request_blocks + pool.reserved_blocks


def _memory_may_be_known(deployment: Deployment, facts: Facts) -> bool:
    weights = facts.weights or (facts.model.weights if facts.model else None)
    return any((deployment.capacity, weights, facts.log, deployment.platform == "cpu", _kv_bytes_given(deployment)))


def _kv_bytes_given(deployment: Deployment) -> bool:
    return any(argument.tokens[0].startswith("--kv-cache-memory") for argument in deployment.engine_args)


def _refused(deployment: Deployment, capacity: Capacity, pool: PoolPlan) -> Finding:
    assert pool.blocks is not None and pool.bottleneck_stage is not None
    tight = pool.stages[pool.bottleneck_stage]
    from shardwright.plan.kv_pool import longest_request

    longest = longest_request(pool.blocks, capacity.pages, capacity.settings)
    where = f"stage {tight.stage}" if len(pool.stages) > 1 else "each card"
    limit = "at most " if pool.basis == "bound" else ""
    shorter = f"MAX_MODEL_LEN={longest}, " if longest else ""
    return Finding(
        GATE,
        "reject",
        f"one request of max_model_len {pool.max_model_len:,} needs {tight.needed_gib:.2f} GiB of KV cache on {where}, "
        f"which has {limit}{tight.available_gib:.2f} GiB: the pool holds {pool.pool_tokens:,} tokens",
        why=_WHY,
        fix=f"{shorter}another split (deploy plan search {deployment.name}), or a smaller kv_cache_dtype",
        evidence=_evidence(pool, tight),
    )


def _logged(deployment: Deployment, facts: Facts) -> list[Finding]:
    """The refusal of an earlier start, where it holds for this max_model_len too."""
    if not facts.log:
        return []
    from shardwright.plan.observed import observe
    from shardwright.resolve.capacity import max_model_len

    refusal = observe(facts.log.splitlines()).refusal
    asked = max_model_len(deployment, facts)
    if refusal is None or asked is None or asked < refusal.max_model_len:
        return []
    shorter = f"MAX_MODEL_LEN={refusal.longest}" if refusal.longest else "a shorter max_model_len"
    return [
        Finding(
            GATE,
            "reject",
            f"an earlier start was refused: max_model_len {refusal.max_model_len:,} needs {refusal.needed_gib} GiB of "
            f"KV cache, available were {refusal.available_gib} GiB",
            why=_WHY,
            fix=f"{shorter}, or more memory for the KV cache",
            evidence="the log",
        )
    ]


def _evidence(pool: PoolPlan, tight: StagePool) -> str:
    return (
        f"{tight.attention_layers} attention layers and {tight.indexers} indexers, {tight.kv_bytes_per_token:,} B per "
        f"token; memory {pool.basis}"
    )
