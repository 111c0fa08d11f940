"""The best partition of a layout's model, for one pipeline size or for every topology that the cards allow."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from shardwright.campaign.planning import PlanRequest, covers_orphans, known_capacity, layer_moves
from shardwright.errors import DeployError, ExitCode
from shardwright.facts.model import ModelFacts
from shardwright.plan.index_sharing import full_layers
from shardwright.plan.kv_pool import PoolPlan, stage_blocks
from shardwright.plan.memory import Basis, MemoryUnknownError
from shardwright.plan.search import SearchLimits, search_partitions
from shardwright.resolve.capacity import Capacity, Shape

DEFAULT_MAX_IMBALANCE = 1.5
_NEIGHBOURS = 4


class SearchOptions(Struct, frozen=True):
    """`floor_gib`: least memory for the KV cache per card. `max_imbalance`: slowest stage's compute over the mean."""

    top: int = 8
    floor_gib: float = 0.0
    max_imbalance: float = DEFAULT_MAX_IMBALANCE


class Found(Struct, frozen=True):
    """One partition. `compute_layers`: layers per stage, MTP layers counted as often as they draft."""

    tensor: int
    pipeline: int
    partition: tuple[int, ...]
    pool_tokens: int
    bottleneck_stage: int
    orphans: tuple[int, ...]
    available_gib: tuple[float, ...]
    compute_layers: tuple[int, ...]
    max_concurrency: float | None
    fits_one_request: bool | None
    basis: Basis


class SearchResult(Struct, frozen=True):
    """Best first. `why` explains the first line by line."""

    found: tuple[Found, ...]
    why: tuple[str, ...]


def search_pipeline(request: PlanRequest, stages: int, options: SearchOptions) -> SearchResult:
    """The best partitions into that many stages. DeployError where the memory is not known or nothing fits."""
    shape = Shape(_tensor_for(request, stages), stages, request.deployment.patches)
    found = _search(request, shape, options)
    if not found:
        raise DeployError(
            f"no partition into {stages} stages fits",
            why="every split leaves some stage without memory for the KV cache or without a usable boundary, or with "
            f"more than {options.max_imbalance:g} times the mean compute",
            fix="more cards per stage, --max-imbalance, or a patch that covers orphan layers",
        )
    return SearchResult(found, _why(request, shape, found))


def search_all(request: PlanRequest, options: SearchOptions) -> SearchResult:
    """The best partition of every TP x PP that uses all cards and that the weights allow."""
    cards = _card_count(request)
    if cards is None:
        raise DeployError(
            "how many cards there are is not known",
            fix="write hardware: in the layout, give --facts, or name the stages with --pp",
            code=ExitCode.INCONCLUSIVE,
        )
    model = _model(request)
    best: list[Found] = []
    for stages in range(1, min(cards, model.num_layers) + 1):
        tensor = cards // stages
        if cards % stages or (model.num_attention_heads or tensor) % tensor:
            continue
        best += _search(request, Shape(tensor, stages, request.deployment.patches), options)[:1]
    if not best:
        raise DeployError(
            f"no TP x PP of {cards} cards holds the model", why="the weights alone fill them", fix="use more cards"
        )
    best.sort(key=lambda found: (-found.pool_tokens, found.pipeline))
    first = best[0]
    return SearchResult(
        tuple(best), _why(request, Shape(first.tensor, first.pipeline, request.deployment.patches), best[:1])
    )


def _search(request: PlanRequest, shape: Shape, options: SearchOptions) -> tuple[Found, ...]:
    model = _model(request)
    capacity = known_capacity(request, shape)
    memory, pages = capacity.memory, capacity.pages
    if isinstance(memory, str):
        raise _unknown(request, memory)
    floor = options.floor_gib * (1 << 30)

    def blocks_of(stage: int, start: int, end: int) -> int:
        available = memory.available_bytes(stage, start, end)
        return 0 if available < floor else stage_blocks(available, pages.block_bytes(start, end), capacity.settings)

    limits = SearchLimits(
        cuts=_cuts(request, model),
        last_extra_layers=_draft_passes(request, capacity) + _head_layers(model),
        max_imbalance=options.max_imbalance,
    )
    try:
        candidates = search_partitions(model.num_layers, shape.stages, blocks_of, pages.orphans, limits, options.top)
    except MemoryUnknownError as error:
        raise _unknown(request, str(error)) from None
    return tuple(_found(request, capacity, capacity.plan(candidate.partition)) for candidate in candidates)


def _found(request: PlanRequest, capacity: Capacity, pool: PoolPlan) -> Found:
    assert pool.pool_tokens is not None and pool.bottleneck_stage is not None and pool.basis is not None
    compute = list(pool.partition)
    compute[-1] += _draft_passes(request, capacity)
    return Found(
        tensor=capacity.shape.tensor,
        pipeline=capacity.shape.stages,
        partition=pool.partition,
        pool_tokens=pool.pool_tokens,
        bottleneck_stage=pool.bottleneck_stage,
        orphans=tuple(layer for stage in pool.stages for layer in stage.orphans),
        available_gib=tuple(round(stage.available_gib or 0.0, 4) for stage in pool.stages),
        compute_layers=tuple(compute),
        max_concurrency=pool.max_concurrency,
        fits_one_request=pool.fits_one_request,
        basis=pool.basis,
    )


def _why(request: PlanRequest, shape: Shape, found: Sequence[Found]) -> tuple[str, ...]:
    """The winner's bound, what its neighbours would give, and which boundaries were allowed."""
    winner = found[0]
    capacity = known_capacity(request, shape)
    pool = capacity.plan(winner.partition)
    tight = pool.stages[winner.bottleneck_stage]
    lines = [
        f"{_text(winner.partition)} holds most: stage {tight.stage} bounds it with {tight.available_gib:.2f} GiB at "
        f"{tight.kv_bytes_per_token:,} B per token"
    ]
    lines += _neighbours(request, capacity, winner)
    lines.append(
        "boundaries in front of shared layers were allowed, a patch of the layout covers the orphan layers"
        if _covered(request)
        else "stages begin on layers that compute their own index: no patch of the layout covers orphan layers"
        if _model(request).index_rule
        else "every boundary was allowed: no layer needs another one's index"
    )
    return tuple(lines)


def _neighbours(request: PlanRequest, capacity: Capacity, winner: Found) -> list[str]:
    """The best splits one layer away that hold less, or that would need a patch."""
    rows = []
    for item in layer_moves(capacity, winner.partition):
        barred = bool(item.orphans) and not _covered(request)
        if item.pool_tokens is not None and (barred or item.pool_tokens < winner.pool_tokens):
            text = f"{_text(item.partition)} would hold {item.pool_tokens:,}, bound by stage {item.bottleneck_stage}"
            rows.append(f"{text}{', but has orphan layers that nothing covers' if barred else ''}")
    return rows[:_NEIGHBOURS]


def _cuts(request: PlanRequest, model: ModelFacts) -> frozenset[int]:
    if model.index_rule is None or _covered(request):
        return frozenset(range(1, model.num_layers))
    return frozenset(full_layers(model.index_rule, model.num_layers)) - {0}


def _covered(request: PlanRequest) -> bool:
    return any(covers_orphans(patch) for patch in request.deployment.patches)


def _draft_passes(request: PlanRequest, capacity: Capacity) -> int:
    """Passes through MTP layers per step, in layers."""
    return request.deployment.speculation.draft_tokens if capacity.pages.draft_layers else 0


def _head_layers(model: ModelFacts) -> float:
    """What the output head computes, in layers; 0 where the config does not say."""
    attention = model.attention
    if attention is None or not attention.active_params_per_layer:
        return 0.0
    return attention.head_params / attention.active_params_per_layer


def _tensor_for(request: PlanRequest, stages: int) -> int:
    tensor, cards = request.deployment.parallel.tensor, _card_count(request)
    if cards is None or tensor * stages <= cards:
        return tensor
    return max(1, cards // stages)


def _card_count(request: PlanRequest) -> int | None:
    if request.facts.gpus:
        return len(request.facts.gpus)
    hardware = request.deployment.hardware
    return hardware.gpus if hardware else None


def _model(request: PlanRequest) -> ModelFacts:
    if request.facts.model is None:
        raise _unknown(request, "the model's config is not known here")
    return request.facts.model


def _unknown(request: PlanRequest, reason: str) -> DeployError:
    return DeployError(
        f"no partition can be searched for {request.deployment.name}: {reason}",
        fix="write capacity: in the layout (docs/planning.md); deploy plan --observed prints it from a start's log",
        code=ExitCode.INCONCLUSIVE,
    )


def _text(partition: Sequence[int]) -> str:
    return ",".join(str(count) for count in partition)
