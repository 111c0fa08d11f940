"""The KV plan of a layout, and the comparison with what a start logged. Runs no gate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from shardwright.connect.project import Project, open_project
from shardwright.errors import DeployError, ExitCode
from shardwright.facts.facts import Facts
from shardwright.facts.facts_file import read_facts_file, with_given_engine
from shardwright.facts.gather import gather_facts, spec_table
from shardwright.facts.model import IndexRule
from shardwright.gates.assess import plan_stages
from shardwright.layout.load import load_layout
from shardwright.layout.overrides import AppliedOverride
from shardwright.overlay.library import list_patches
from shardwright.overlay.patch import Patch
from shardwright.plan.index_sharing import nearest_aligned_split
from shardwright.plan.kv_pages import UnknownPagesError
from shardwright.plan.kv_pool import PoolPlan, logged_tokens
from shardwright.plan.observed import ObservedPool, observe
from shardwright.plan.stages import build_stages
from shardwright.resolve.capacity import Capacity, Shape, capacity_of
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.resolve import resolve

TOLERANCE = 0.01
"""Predicted and actual may differ by this share before it is a finding."""

ORPHAN_REMEDY = "pp-orphans"
"""Patches whose remedies begin so make a split with orphan layers usable."""

_MIB = 1 << 20


class PlanRequest(Struct, frozen=True):
    """One layout, resolved and not judged."""

    project: Project
    overrides: tuple[AppliedOverride, ...]
    facts: Facts
    deployment: Deployment


class Alternative(Struct, frozen=True):
    """Another split or remedy and the pool that it would give; `note` says what it costs or is."""

    partition: tuple[int, ...]
    orphans: tuple[int, ...]
    pool_tokens: int | None
    bottleneck_stage: int | None
    note: str


class PlanReport(Struct, frozen=True):
    """The plan, what each remedy for orphan layers would give, and what moving one layer would change."""

    capacity: Capacity
    pool: PoolPlan
    remedies: tuple[Alternative, ...]
    moves: tuple[Alternative, ...]


class Difference(Struct, frozen=True):
    """One predicted number beside the logged one; either may be unknown."""

    what: str
    predicted: float | None
    actual: float | None

    @property
    def share(self) -> float | None:
        """How far the prediction is off, as a share of the actual number."""
        if self.predicted is None or not self.actual:
            return None
        return self.predicted / self.actual - 1

    @property
    def is_finding(self) -> bool:
        return self.share is not None and abs(self.share) > TOLERANCE


def load_plan_request(
    name: str | None, environ: Mapping[str, str], sets: Sequence[str] = (), facts_file: Path | None = None
) -> PlanRequest:
    """Load, gather, resolve. Facts of this machine count unless a facts file stands in for it."""
    project = open_project(environ)
    layout, overrides = load_layout(name, project, environ, sets)
    given = read_facts_file(facts_file) if facts_file else None
    if given is not None:
        layout = with_given_engine(layout, given)
    facts = gather_facts(layout, project, host=given is None, given=given)
    return PlanRequest(project, overrides, facts, resolve(layout, facts, spec_table(project), project))


def report_plan(request: PlanRequest) -> PlanReport:
    """Plan the layout's own split. DeployError where the split cannot be used or the model's pages are not known."""
    capacity, partition = known_capacity(request), planned_partition(request)
    return PlanReport(
        capacity=capacity,
        pool=capacity.plan(partition),
        remedies=_remedies(request, partition),
        moves=layer_moves(capacity, partition),
    )


def known_capacity(request: PlanRequest, shape: Shape | None = None) -> Capacity:
    """DeployError, inconclusive, where the planner has no rule for this model."""
    try:
        return capacity_of(request.deployment, request.facts, shape)
    except UnknownPagesError as error:
        name = request.deployment.name
        raise DeployError(
            f"the KV pool of {name} cannot be predicted: {error}",
            why="a guess would be believed",
            fix=f"start it once and read what it logs: deploy plan {name} --observed",
            code=ExitCode.INCONCLUSIVE,
        ) from None


def planned_partition(request: PlanRequest) -> tuple[int, ...]:
    """Layers per stage: the hand partition, else the engine's own split."""
    plan = plan_stages(request.deployment, request.facts)
    if not plan.stages:
        reason = plan.partition_error or "the number of layers is not known"
        raise DeployError(f"no stages to plan: {reason}", fix=f"deploy check {request.deployment.name}")
    return plan.partition


def compare_with_log(request: PlanRequest, lines: Iterable[str]) -> tuple[ObservedPool, tuple[Difference, ...]]:
    """Predicted beside actual: memory per stage, then the pool. DeployError where the log says nothing of memory."""
    observed = observe(lines)
    if not observed.ranks and observed.pool_tokens is None:
        raise DeployError(
            "the log says nothing of the KV cache yet",
            fix=f"deploy wait {request.deployment.name}",
            code=ExitCode.INCONCLUSIVE,
        )
    partition = planned_partition(request)
    try:
        capacity = capacity_of(request.deployment, request.facts)
    except UnknownPagesError:
        stages = [Difference(f"stage {stage} GiB", None, observed.stage_gib(stage)) for stage in range(len(partition))]
        return observed, (*stages, Difference("pool tokens", None, observed.pool_tokens))
    pool = capacity.plan(partition)
    rows = [
        Difference(f"stage {stage.stage} GiB", stage.available_gib, observed.stage_gib(stage.stage))
        for stage in pool.stages
    ]
    logged = logged_tokens(capacity.pages, pool.blocks, capacity.settings) if pool.blocks is not None else None
    return observed, (*rows, Difference("pool tokens", logged or pool.pool_tokens, observed.pool_tokens))


def covers_orphans(patch: Patch) -> bool:
    return any(remedy.startswith(ORPHAN_REMEDY) for remedy in patch.remedies)


def _remedies(request: PlanRequest, partition: Sequence[int]) -> tuple[Alternative, ...]:
    """The aligned split, and each patch of the library that covers orphans, on this split."""
    model, deployment = request.facts.model, request.deployment
    if model is None or model.index_rule is None or not _has_orphans(model.index_rule, partition):
        return ()
    others = tuple(patch for patch in deployment.patches if not covers_orphans(patch))
    shape = Shape.of(deployment)
    found = []
    aligned = nearest_aligned_split(model.index_rule, partition)
    if aligned is not None:
        bare = capacity_of(deployment, request.facts, Shape(shape.tensor, shape.stages, others))
        found.append(_alternative(bare, aligned, "aligned split: no orphan layers, no patch"))
    for patch in list_patches(request.project.patch_roots()):
        if covers_orphans(patch):
            capacity = capacity_of(deployment, request.facts, Shape(shape.tensor, shape.stages, (*others, patch)))
            found.append(_alternative(capacity, partition, f"patches: [{patch.id}]: {_cost(patch, capacity)}"))
    return tuple(found)


def _has_orphans(rule: IndexRule, partition: Sequence[int]) -> bool:
    return any(stage.orphans for stage in build_stages(partition, rule))


def _cost(patch: Patch, capacity: Capacity) -> str:
    effects, parts = patch.plan_effects, []
    if effects.indexers_on_orphans:
        parts.append(f"{capacity.pages.rule.indexer_bytes} B per token for each orphan's indexer")
    if effects.boundary_bytes_per_token:
        size = effects.boundary_bytes_per_token * capacity.batched_tokens / _MIB
        parts.append(f"{size:.0f} MiB of index rows on each stage that begins on an orphan")
    return ", ".join(parts) or "costs no memory"


def layer_moves(capacity: Capacity, partition: Sequence[int]) -> tuple[Alternative, ...]:
    """One layer over each boundary, both ways, best first."""
    found = []
    for boundary in range(len(partition) - 1):
        for step in (-1, 1):
            moved = list(partition)
            moved[boundary] += step
            moved[boundary + 1] -= step
            if min(moved) > 0:
                text = f"one layer from stage {boundary + (step > 0)} to stage {boundary + (step < 0)}"
                found.append(_alternative(capacity, moved, text))
    return tuple(sorted(found, key=lambda item: -(item.pool_tokens or 0)))


def _alternative(capacity: Capacity, partition: Sequence[int], note: str) -> Alternative:
    pool = capacity.plan(partition)
    orphans = tuple(layer for stage in pool.stages for layer in stage.orphans)
    return Alternative(tuple(partition), orphans, pool.pool_tokens, pool.bottleneck_stage, note)
