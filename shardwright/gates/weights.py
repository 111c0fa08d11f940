"""`weights-fit`: the weights of a stage leave room on its cards."""

from __future__ import annotations

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import misread
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "weights-fit"


def check_weights(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """Silent where the size of the loaded weights or the memory of the cards is not known, and on the CPU."""
    known = facts.weights or (facts.model.weights if facts.model else None)
    if deployment.platform == "cpu" or not plan.stages or known is None:
        return []
    # The planner costs start-up time, which layouts without known weights need not pay.
    from shardwright.plan.memory import GIB
    from shardwright.resolve.capacity import Shape, card_memory_gib, stage_weights, utilization

    shape = Shape.of(deployment)
    cards = card_memory_gib(deployment, facts, shape)
    try:
        share = utilization(deployment)
        weights = stage_weights(deployment, facts, shape.tensor)
    except UsageError as error:
        return misread(GATE, error, facts)
    if weights is None or len(cards) != shape.stages:
        return []
    findings = []
    for stage, memory_gib in zip(plan.stages, cards, strict=True):
        size_gib, budget_gib = weights.stage_bytes(stage.first_layer, stage.end_layer) / GIB, share * memory_gib
        if size_gib >= budget_gib:
            where = f"each card of stage {stage.index}" if shape.stages > 1 else "each card"
            findings.append(
                Finding(
                    GATE,
                    "reject",
                    f"TP={shape.tensor} PP={shape.stages} puts {size_gib:.1f} GiB of weights on {where}, but "
                    f"the engine may use {share:g} x {memory_gib:g} = {budget_gib:.2f} GiB of it",
                    why="the engine runs out of memory while it loads, before any KV cache",
                    fix=f"more cards: TP x PP of at least {_least_cards(known.total / GIB, budget_gib)}, "
                    f"or fewer layers on that stage; deploy plan search {deployment.name}",
                    evidence=known.source,
                )
            )
    return findings


def _least_cards(total_gib: float, budget_gib: float) -> int:
    return int(total_gib / budget_gib) + 1 if budget_gib > 0 else 1
