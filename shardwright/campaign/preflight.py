"""What a change of the layer split would mean, before anything is touched; pure over a prepared request."""

from __future__ import annotations

from msgspec import Struct

from shardwright.campaign.planning import covers_orphans
from shardwright.campaign.request import Request
from shardwright.errors import DeployError
from shardwright.plan.interval_gate import CounterExample, counter_example, missed_orphans, self_computing
from shardwright.plan.stages import build_stages


class StagePreflight(Struct, frozen=True):
    """One stage: layers [first_layer, end_layer), those that compute their own index, and those that would not."""

    stage: int
    first_layer: int
    end_layer: int
    self_computing: tuple[int, ...]
    orphans: tuple[int, ...]


class Preflight(Struct, frozen=True):
    """`residual_unsafe`: orphans that no patch of the layout covers. `counter_example` shows that the rule can say no.

    `refusals` are what gates say against this split, one line each.
    """

    layout: str
    partition: tuple[int, ...]
    indexed: bool
    stages: tuple[StagePreflight, ...]
    covering_patches: tuple[str, ...]
    residual_unsafe: tuple[int, ...]
    missed_by_even_intervals: tuple[int, ...]
    counter_example: CounterExample | None
    refusals: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """No layer is unsafe, no gate refuses, and the rule was shown to say no where a model has index sharing."""
        shown = self.counter_example is not None or not self.indexed or len(self.stages) < 2
        return not self.residual_unsafe and not self.refusals and shown


def preflight(request: Request) -> Preflight:
    """Judge the split of a request. DeployError where the split cannot be used or the model is not known."""
    deployment, model = request.deployment, request.facts.model
    plan = request.assessment.plan
    if not plan.stages:
        raise DeployError(
            f"no stages to look at: {plan.partition_error or 'the number of layers is not known'}",
            fix=f"deploy check {deployment.name}",
        )
    rule = model.index_rule if model else None
    partition = plan.partition
    own = self_computing(rule, partition) if rule else tuple(() for _ in partition)
    stages = tuple(
        StagePreflight(stage.index, stage.first_layer, stage.end_layer, own[stage.index], stage.orphans)
        for stage in build_stages(partition, rule)
    )
    covering = tuple(patch.id for patch in deployment.patches if covers_orphans(patch))
    orphans = tuple(layer for stage in stages for layer in stage.orphans)
    return Preflight(
        layout=deployment.name,
        partition=partition,
        indexed=rule is not None,
        stages=stages,
        covering_patches=covering,
        residual_unsafe=() if covering else orphans,
        missed_by_even_intervals=missed_orphans(rule, partition) if rule else (),
        counter_example=counter_example(rule, sum(partition), len(partition)) if rule else None,
        refusals=tuple(
            f"{finding.gate}: {finding.message}"
            for finding in request.assessment.findings
            if finding.verdict == "reject"
        ),
    )
