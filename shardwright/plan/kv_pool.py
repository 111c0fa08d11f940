"""The KV pool of a partition: blocks per stage, the stage that bounds it, tokens, concurrency."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from shardwright.plan.layer_pages import LayerPages
from shardwright.plan.memory import GIB, Basis, StageMemory
from shardwright.plan.weights import StageWeights


class PoolSettings(Struct, frozen=True):
    """What the deployment says of requests.

    `reserved_blocks`: the null block that the engine's own fit check keeps back, 1 from 0.30 on. `in_flight_tokens`:
    tokens scheduled and not yet settled, which sliding layers hold beyond their window.
    """

    max_model_len: int | None = None
    context_parallel: int = 1
    in_flight_tokens: int = 0
    reserved_blocks: int = 1
    blocks_override: int | None = None


class StagePool(Struct, frozen=True):
    """One stage on one card; what depends on memory is None where that is not known.

    `tokens`: what the pool would hold if this stage were the tightest. `needed_gib`: KV memory for one request of
    max_model_len, None where that is not known.
    """

    stage: int
    first_layer: int
    last_layer: int
    orphans: tuple[int, ...]
    attention_layers: int
    indexers: int
    kv_bytes_per_token: int
    needed_gib: float | None
    weights_gib: float | None
    available_gib: float | None = None
    blocks: int | None = None
    tokens: int | None = None


class PoolPlan(Struct, frozen=True):
    """`blocks` is the minimum over the stages: the engine shrinks the others to it. `unknown`: why there is none."""

    stages: tuple[StagePool, ...]
    block_tokens: int
    max_model_len: int | None
    request_blocks: int | None
    reserved_blocks: int
    unknown: str = ""
    basis: Basis | None = None
    blocks: int | None = None
    pool_tokens: int | None = None
    bottleneck_stage: int | None = None
    max_concurrency: float | None = None

    @property
    def partition(self) -> tuple[int, ...]:
        return tuple(stage.last_layer - stage.first_layer + 1 for stage in self.stages)

    @property
    def fits_one_request(self) -> bool | None:
        """Whether a request of max_model_len fits, by the engine's own check at start; None where that is not known."""
        if self.request_blocks is None or self.blocks is None:
            return None
        return self.request_blocks + self.reserved_blocks <= self.blocks


def plan_pool(
    partition: Sequence[int],
    pages: LayerPages,
    memory: StageMemory | str,
    settings: PoolSettings,
    weights: StageWeights | None = None,
) -> PoolPlan:
    """Plan one partition; `memory` is a text where it is not known, and says why.

    vLLM kv_cache_utils.py get_kv_cache_configs: blocks of a stage are available bytes over the bytes of a block, the
    pool is the smallest. Raises MemoryUnknownError where layers were moved and nothing says what they weigh.
    """
    length = settings.max_model_len
    request = None if length is None else _request_blocks(pages, settings, length)
    stages, start = [], 0
    for index, count in enumerate(partition):
        stage = _without_memory(index, start, start + count, pages, request, weights)
        stages.append(stage if isinstance(memory, str) else _with_memory(stage, pages, memory, settings))
        start += count
    plan = PoolPlan(
        stages=tuple(stages),
        block_tokens=pages.rule.block_tokens,
        max_model_len=settings.max_model_len,
        request_blocks=request,
        reserved_blocks=settings.reserved_blocks,
    )
    if isinstance(memory, str):
        return replace(plan, unknown=memory)
    blocks, tightest = min((stage.blocks or 0, stage.stage) for stage in stages)
    return replace(
        plan,
        basis=memory.basis,
        blocks=blocks,
        pool_tokens=pool_tokens(pages, blocks, settings),
        bottleneck_stage=tightest,
        max_concurrency=blocks / request if request else None,
    )


def _without_memory(
    index: int, start: int, end: int, pages: LayerPages, request: int | None, weights: StageWeights | None
) -> StagePool:
    block_bytes = pages.block_bytes(start, end)
    return StagePool(
        stage=index,
        first_layer=start,
        last_layer=end - 1,
        orphans=tuple(range(start, start + pages.orphans(start, end))),
        attention_layers=pages.attention_layers(start, end),
        indexers=pages.indexers(start, end),
        kv_bytes_per_token=block_bytes // pages.rule.block_tokens,
        needed_gib=None if request is None else request * block_bytes / GIB,
        weights_gib=weights.stage_bytes(start, end) / GIB if weights else None,
    )


def _with_memory(stage: StagePool, pages: LayerPages, memory: StageMemory, settings: PoolSettings) -> StagePool:
    start, end = stage.first_layer, stage.last_layer + 1
    available = memory.available_bytes(stage.stage, start, end)
    blocks = stage_blocks(available, pages.block_bytes(start, end), settings)
    return replace(stage, available_gib=available / GIB, blocks=blocks, tokens=pool_tokens(pages, blocks, settings))


def stage_blocks(available_bytes: float, block_bytes: int, settings: PoolSettings) -> int:
    """Whole blocks in that memory; 0 where there is none."""
    if settings.blocks_override is not None:
        return settings.blocks_override
    return max(0, int(available_bytes)) // block_bytes


def pool_tokens(pages: LayerPages, blocks: int, settings: PoolSettings) -> int:
    """Tokens that so many blocks hold: of one long sequence, or, where layers slide, in requests of max_model_len."""
    if not pages.rule.window:
        return blocks * pages.rule.block_tokens * settings.context_parallel
    return logged_tokens(pages, blocks, settings) or 0


def logged_tokens(pages: LayerPages, blocks: int, settings: PoolSettings) -> int | None:
    """The size that the engine logs, vLLM kv_cache_utils.py get_kv_cache_capacity: concurrency times max_model_len.

    It is below `pool_tokens` where max_model_len is no multiple of the block; None when max_model_len is not known.
    """
    length = settings.max_model_len
    if length is None or length < 1:
        return None
    return int(blocks / _request_blocks(pages, settings, length) * length)


def resident_requests(blocks: int, pages: LayerPages, settings: PoolSettings, tokens: int) -> int:
    """How many requests of that many tokens, at least 1, stay together in a pool of so many blocks."""
    return max(0, blocks - settings.reserved_blocks) // _request_blocks(pages, settings, tokens)


def longest_request(blocks: int, pages: LayerPages, settings: PoolSettings) -> int:
    """The largest max_model_len, up to the one asked for, that so many blocks serve; 0 when not one token fits."""
    lengths = range(1, (settings.max_model_len or blocks * pages.rule.block_tokens) + 1)
    free = blocks - settings.reserved_blocks
    return bisect_right(lengths, free, key=lambda tokens: _request_blocks(pages, settings, tokens))


def _request_blocks(pages: LayerPages, settings: PoolSettings, tokens: int) -> int:
    return pages.request_blocks(
        tokens, context_parallel=settings.context_parallel, in_flight_tokens=settings.in_flight_tokens
    )
