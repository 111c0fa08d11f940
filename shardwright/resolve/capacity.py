"""What the KV planner needs of a deployment: its flags read back, its patches' effects, the memory of its cards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.facts.positions import unasked_length
from shardwright.facts.versions import version_in
from shardwright.facts.weights import WeightFacts
from shardwright.layout.capacity import Calibration
from shardwright.overlay.patch import Patch
from shardwright.plan.batching import BatchSettings, batched_tokens
from shardwright.plan.kv_pages import CacheSettings, UnknownPagesError, page_rule
from shardwright.plan.kv_pool import PoolPlan, PoolSettings, plan_pool
from shardwright.plan.layer_pages import LayerPages
from shardwright.plan.memory import GIB, MemorySources, MemoryUnknownError, StageMemory, even_cards
from shardwright.plan.weights import StageWeights
from shardwright.plan.workspace import default_factor, prefill_workspace_bytes
from shardwright.resolve.counts import parse_count
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.flags import FITTED_LENGTHS, flag_value, kv_cache_dtype
from shardwright.resolve.json_flags import flag_object
from shardwright.resolve.rules import RUNNER_ENV, effective_runner

_CPU_SPACE_ENV = "VLLM_CPU_KVCACHE_SPACE"
_DEFAULT_UTILIZATION = 0.92
# Speculation that adds no layers with a KV cache of their own.
_DRAFTLESS = frozenset({"none", "ngram", "ngram_gpu", "suffix"})


class Shape(Struct, frozen=True):
    """Tensor and pipeline size, and whose effects count; by default the deployment's own."""

    tensor: int
    stages: int
    patches: tuple[Patch, ...]

    @classmethod
    def of(cls, deployment: Deployment) -> Shape:
        return cls(deployment.parallel.tensor, deployment.parallel.pipeline, deployment.patches)

    @property
    def indexers_on_orphans(self) -> bool:
        return any(patch.plan_effects.indexers_on_orphans for patch in self.patches)

    @property
    def boundary_bytes_per_token(self) -> int:
        return sum(patch.plan_effects.boundary_bytes_per_token for patch in self.patches)


class Capacity(Struct, frozen=True):
    """Everything with which any partition of one shape can be planned."""

    shape: Shape
    pages: LayerPages
    memory: StageMemory | str
    """Why it is not known, where it is not."""
    settings: PoolSettings
    weights: StageWeights | None
    batched_tokens: int

    def plan(self, partition: Sequence[int]) -> PoolPlan:
        """The pool of one partition; without a pool where the memory is not known."""
        try:
            return plan_pool(partition, self.pages, self.memory, self.settings, self.weights)
        except MemoryUnknownError as error:
            return plan_pool(partition, self.pages, str(error), self.settings, self.weights)


def capacity_of(deployment: Deployment, facts: Facts, shape: Shape | None = None) -> Capacity:
    """Raises UnknownPagesError where the model's pages are not known, and UsageError for a flag that does not read."""
    shape = shape or Shape.of(deployment)
    model = facts.model
    if model is None:
        raise UnknownPagesError("the model's config is not known here: set model.facts, or run where model.path exists")
    rule = page_rule(model.attention, cache_settings(deployment, facts, shape))
    pages = LayerPages(
        rule,
        model.num_layers,
        model.index_rule,
        draft_layers=_draft_layers(deployment, facts, bool(rule.sliding)),
        indexers_on_orphans=shape.indexers_on_orphans,
    )
    batch = batched_tokens(_batch_settings(deployment, facts, shape))
    weights = known_weights(facts)
    calibration = _calibration(deployment)
    other = calibration.tensor if calibration and calibration.tensor else shape.tensor
    on_cards = stage_weights(deployment, facts, shape.tensor) if weights else None
    before = stage_weights(deployment, facts, other) if weights else None
    memory: StageMemory | str
    try:
        memory = StageMemory(_memory_sources(deployment, facts, shape, batch), pages, on_cards, before)
    except MemoryUnknownError as error:
        memory = str(error)
    settings = PoolSettings(
        max_model_len=max_model_len(deployment, facts),
        context_parallel=_whole(deployment, "--decode-context-parallel-size", "-dcp") or 1,
        in_flight_tokens=_concurrent_batches(deployment, shape.stages) * batch,
        reserved_blocks=1 if version_in(deployment.engine.vllm, ">=0.30") else 0,
        blocks_override=_whole(deployment, "--num-gpu-blocks-override"),
    )
    return Capacity(shape, pages, memory, settings, on_cards, batch)


def cache_settings(deployment: Deployment, facts: Facts, shape: Shape) -> CacheSettings:
    capability = _capability(deployment, facts).partition(".")[0]
    return CacheSettings(
        version=deployment.engine.vllm,
        platform=deployment.platform,
        kv_dtype=kv_cache_dtype(deployment, facts)[0],
        dtype=flag_value(deployment, "--dtype") or "auto",
        block_tokens=_whole(deployment, "--block-size"),
        tensor=shape.tensor,
        capability_major=int(capability) if capability.isdigit() else None,
        hybrid_manager=flag_value(deployment, "--disable-hybrid-kv-cache-manager") is None,
    )


def known_weights(facts: Facts) -> WeightFacts | None:
    """From the checkpoint's headers, else as the model file declares them."""
    return facts.weights or (facts.model.weights if facts.model else None)


def stage_weights(deployment: Deployment, facts: Facts, tensor: int) -> StageWeights | None:
    """Weights per card at that TP; None where they are not known, or not known before the engine has loaded them."""
    weights, model = known_weights(facts), facts.model
    if weights is None or model is None or len(weights.layers) != model.num_layers:
        return None
    if _changed_by_loading(deployment, facts):
        return None
    kv_heads = model.attention.num_kv_heads if model.attention else 0
    drafts = deployment.speculation.family == "mtp"
    return StageWeights(weights, tensor, kv_heads, drafts=drafts, offloaded_bytes=_offloaded_gib(deployment) * GIB)


def _changed_by_loading(deployment: Deployment, facts: Facts) -> bool:
    """The engine quantises a plain checkpoint while it loads, or offloads weights by name or in groups of layers."""
    plain = facts.shape is not None and facts.shape.quantisation is None
    if plain and flag_value(deployment, "--quantization", "-q") not in (None, "None", "none"):
        return True
    return bool(flag_value(deployment, "--cpu-offload-params") or _whole(deployment, "--offload-group-size"))


def _offloaded_gib(deployment: Deployment) -> float:
    """GiB of weights per card that stay on the host."""
    text = flag_value(deployment, "--cpu-offload-gb")
    try:
        size = float(text or 0)
    except ValueError:
        size = math.nan
    if not size >= 0:
        raise _misread(deployment, "--cpu-offload-gb", f"{text!r} is not a number of GiB")
    return size


def utilization(deployment: Deployment) -> float:
    """The share of a card that the engine takes."""
    text = flag_value(deployment, "--gpu-memory-utilization")
    if text is None:
        return _DEFAULT_UTILIZATION
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise _misread(deployment, "--gpu-memory-utilization", f"{text!r} is not a number above 0 and up to 1")
    return share


def card_memory_gib(deployment: Deployment, facts: Facts, shape: Shape) -> tuple[float, ...]:
    """Memory per card of each stage: as the layout says it, else its hardware, else this host's cards."""
    declared = deployment.capacity.stage_memory_gib if deployment.capacity else ()
    if len(declared) == shape.stages:
        return declared
    if facts.gpus:
        return even_cards([gpu.memory_gib for gpu in facts.gpus], shape.tensor, shape.stages)
    if deployment.hardware is not None:
        return (deployment.hardware.memory_gib,) * shape.stages
    return ()


def max_model_len(deployment: Deployment, facts: Facts) -> int | None:
    """As asked for; where the layout is silent (or says auto), what the engine takes from the model's config."""
    text = flag_value(deployment, "--max-model-len")
    value = _whole(deployment, "--max-model-len") if text not in (None, *FITTED_LENGTHS) else None
    if value is None and facts.shape is not None and facts.shape.positions is not None:
        sliding_off = flag_value(deployment, "--disable-sliding-window") is not None
        return unasked_length(facts.shape.positions, deployment.engine.vllm, sliding_off=sliding_off)
    return value


def _memory_sources(deployment: Deployment, facts: Facts, shape: Shape, batch: int) -> MemorySources:
    capacity, calibration = deployment.capacity, _calibration(deployment)
    kv_dtype, _ = kv_cache_dtype(deployment, facts)
    return MemorySources(
        tensor=shape.tensor,
        stages=shape.stages,
        given_gib=_given_gib(deployment),
        card_gib=card_memory_gib(deployment, facts, shape),
        utilization=utilization(deployment),
        calibration=calibration,
        overhead_gib=capacity.overhead_gib if capacity else None,
        boundary_bytes=shape.boundary_bytes_per_token * batch,
        workspace_bytes=_workspace_difference(deployment, facts, calibration),
        other_cache=kv_dtype != ((calibration and calibration.kv_cache_dtype) or kv_dtype),
    )


def _workspace_difference(deployment: Deployment, facts: Facts, calibration: Calibration | None) -> int:
    """Bytes by which the prefill workspace of the calibrated boot was larger than this deployment's."""
    attention = facts.model.attention if facts.model else None
    if calibration is None or deployment.platform != "cuda":
        return 0
    length, (dtype, _) = max_model_len(deployment, facts), kv_cache_dtype(deployment, facts)
    length_before = calibration.max_model_len or length
    before = prefill_workspace_bytes(
        attention, calibration.kv_cache_dtype or dtype, length_before, _workspace_factor(deployment, length_before)
    )
    return before - prefill_workspace_bytes(attention, dtype, length, _workspace_factor(deployment, length))


def _workspace_factor(deployment: Deployment, length: int | None) -> int:
    given = flag_object(deployment.engine_args, "--attention-config").get("sparse_mla_prefill_workspace_factor")
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    return default_factor(deployment.engine.vllm, length)


def _calibration(deployment: Deployment) -> Calibration | None:
    """The layout's calibration, with the TP of the layout where it names none."""
    calibration = deployment.capacity.calibration if deployment.capacity else None
    if calibration is None or calibration.tensor is not None:
        return calibration
    return replace(calibration, tensor=deployment.parallel.tensor)


def _given_gib(deployment: Deployment) -> float | None:
    explicit = _whole(deployment, "--kv-cache-memory-bytes", "--kv-cache-memory")
    if explicit is not None:
        return explicit / GIB
    if deployment.platform != "cpu":
        return None
    space = next((pair.value for pair in deployment.env if pair.name == _CPU_SPACE_ENV), None)
    return float(space) if space and space.isascii() and space.isdigit() and len(space) < 16 else None


def _draft_layers(deployment: Deployment, facts: Facts, windows: bool) -> int:
    method = deployment.speculation.family
    if method in _DRAFTLESS:
        return 0
    if method != "mtp" or facts.model is None:
        raise UnknownPagesError(f"the layers of a {method} drafter are not known here")
    if windows and facts.model.num_mtp_layers:
        raise UnknownPagesError("whether the MTP layers keep a window is not known here")
    return facts.model.num_mtp_layers


def _batch_settings(deployment: Deployment, facts: Facts, shape: Shape) -> BatchSettings:
    cards = card_memory_gib(deployment, facts, shape)
    return BatchSettings(
        version=deployment.engine.vllm,
        platform=deployment.platform,
        world_size=shape.tensor * shape.stages,
        asked=_whole(deployment, "--max-num-batched-tokens"),
        card_gib=min(cards, default=0.0),
        card_name=facts.gpus[0].name if facts.gpus else "",
        compute_capability=_capability(deployment, facts),
        throughput_mode=flag_value(deployment, "--performance-mode") == "throughput",
        chunked_prefill=flag_value(deployment, "--no-enable-chunked-prefill") is None,
        max_model_len=max_model_len(deployment, facts),
        max_num_seqs=_whole(deployment, "--max-num-seqs"),
    )


def _concurrent_batches(deployment: Deployment, stages: int) -> int:
    """Batches under way together: vLLM config/vllm.py max_concurrent_batches."""
    if flag_value(deployment, "--no-async-scheduling") is not None or deployment.speculation.family in (
        "ngram",
        "suffix",
    ):
        return stages
    pinned = next((pair.value for pair in deployment.env if pair.name == RUNNER_ENV), "")
    if effective_runner(deployment.platform, deployment.engine.vllm, pinned) == "v2":
        return stages + 1
    return 2 if stages == 1 else stages


def _capability(deployment: Deployment, facts: Facts) -> str:
    if facts.gpus:
        return facts.gpus[0].compute_capability
    return deployment.hardware.compute_capability if deployment.hardware else ""


def _whole(deployment: Deployment, *names: str) -> int | None:
    try:
        return parse_count(flag_value(deployment, *names))
    except UsageError as error:
        raise _misread(deployment, names[0], error.what) from None


def _misread(deployment: Deployment, name: str, what: str) -> UsageError:
    spelled = [argument for argument in deployment.engine_args if argument.tokens[0].partition("=")[0] == name]
    where = f"{spelled[-1].origin}: " if spelled else ""
    return UsageError(f"{where}{name}: {what}")
