"""`pp-layer-partition`: the hand partition has one positive count per stage and adds up to the model's layers."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.plan.partition import PartitionError, default_partition, parse_partition
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "pp-layer-partition"


def check_layer_partition(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    asked, stages = deployment.parallel.layer_partition, deployment.parallel.pipeline
    layers = facts.model.num_layers if facts.model else None
    if asked is None:
        return _default_split(stages, layers)
    if stages == 1:
        return [
            Finding(
                GATE,
                "warn",
                f"the partition {asked} is dropped, because PP=1",
                why="with one stage the engine raises 'does not match pp_size=1' instead of ignoring it",
                fix="set parallel.layer_partition: null for this topology",
            )
        ]
    try:
        counts = parse_partition(asked)
    except PartitionError as error:
        return [_refused(str(error), stages, layers, "the engine would raise in every worker, minutes into the start")]
    if len(counts) != stages:
        text = f"the partition {asked} has {len(counts)} stages, but PP={stages}"
        return [_refused(text, stages, layers, "the engine raises 'len(partitions) does not match pp_size'")]
    if layers is None:
        return [Finding(GATE, "unknown", f"the partition {asked} cannot be summed: the number of layers is not known")]
    if sum(counts) != layers:
        text = f"the partition {asked} adds up to {sum(counts)}, but the model has {layers} layers"
        return [_refused(f"{text} ({sum(counts) - layers:+d})", stages, layers, "the engine raises in every worker")]
    return []


def _default_split(stages: int, layers: int | None) -> list[Finding]:
    if layers is not None and stages > layers:
        text = f"PP={stages} leaves stages without layers: the model has {layers}"
        return [Finding(GATE, "reject", text, why="the engine does not refuse it", fix="use fewer stages")]
    return []


def _refused(message: str, stages: int, layers: int | None, why: str) -> Finding:
    fix = "write one positive whole number per stage, separated by commas"
    if layers is not None and stages <= layers:
        example = ",".join(str(count) for count in default_partition(layers, stages))
        fix = f"{fix}, e.g. PP_LAYER_PARTITION={example}"
    return Finding(GATE, "reject", message, why=why, fix=fix)
