"""Whether a tensor-parallel size divides what it must of a model, by the engine's own checks; pure."""

from __future__ import annotations

from msgspec import Struct

from shardwright.facts.shape import ModelShape, Quantisation

VOCABULARY_PADDING = 64
MXFP4_GROUP = 32

# Models whose own loader cuts experts at the scales of the weights and pads the last rank's, vLLM gpt_oss.py.
_CUT_AT_SCALES = frozenset({"GptOssForCausalLM"})

# The word of a part in an ignore list, and words that make it another part's.
_IGNORE_WORDS = {
    "shared expert": ("shared_expert", ()),
    "routed expert": ("experts", ("shared",)),
    "dense MLP": ("mlp", ("expert",)),
}


class Obstacle(Struct, frozen=True):
    """One thing that a tensor-parallel size does not divide. `expert`: expert parallelism would remove it."""

    what: str
    why: str
    expert: bool = False


def obstacles(shape: ModelShape, tensor: int, *, expert_parallel: bool, replicas: int = 1) -> tuple[Obstacle, ...]:
    """Everything that stands against a TP size, in the order in which the engine would meet it.

    `replicas`: DP x PCP; without expert parallelism the engine cuts routed experts over TP x DP x PCP ranks.

    Sources: vLLM config/model.py verify_with_parallel_config (heads), mamba_utils.py gated_delta_net_state_shape
    (linear attention), vocab_parallel_embedding.py (vocabulary padded to 64), distributed/utils.py ensure_divisibility
    (widths), quantization/utils/fp8_utils.py (validate_fp8_block_shape), compressed_tensors_moe (group size), mxfp4 (32
    elements per scale).
    """
    return (
        *_heads(shape, tensor),
        *_vocabulary(shape, tensor),
        *_widths(shape, tensor, 1 if expert_parallel else tensor * replicas),
    )


def largest_tensor(shape: ModelShape, below: int, *, expert_parallel: bool, replicas: int = 1) -> int | None:
    """The largest TP size under `below` without obstacles; None where even 1 has one."""

    def fits(size: int) -> bool:
        return not obstacles(shape, size, expert_parallel=expert_parallel, replicas=replicas)

    return max(filter(fits, range(1, below)), default=None)


def _heads(shape: ModelShape, tensor: int) -> list[Obstacle]:
    found = []
    if shape.heads is not None and shape.heads % tensor:
        found.append(
            Obstacle(
                f"{shape.heads} attention heads % {tensor} = {shape.heads % tensor}",
                f"the engine raises 'Total number of attention heads ({shape.heads}) must be divisible by tensor "
                f"parallel size ({tensor}).'",
            )
        )
    for heads in dict.fromkeys(shape.linear_heads):
        if heads % tensor:
            text = f"{heads} heads of linear attention % {tensor} = {heads % tensor}"
            found.append(Obstacle(text, f"the engine asserts '{heads} is not divisible by {tensor}'"))
    # Fewer KV heads than ranks are replicated, when the ranks are a multiple of them.
    if shape.kv_heads and not shape.mla and shape.kv_heads % tensor and tensor % shape.kv_heads:
        found.append(
            Obstacle(
                f"{shape.kv_heads} KV heads and TP={tensor}: neither divides the other",
                "the engine shards KV heads or replicates them, and can do neither here (it asserts)",
            )
        )
    return found


def _vocabulary(shape: ModelShape, tensor: int) -> list[Obstacle]:
    if shape.vocabulary is None:
        return []
    padded = -(-shape.vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if padded % tensor == 0:
        return []
    text = f"vocabulary {shape.vocabulary}, padded to {padded}: {padded} % {tensor} = {padded % tensor}"
    return [Obstacle(text, f"the engine's embedding asserts '{padded} is not divisible by {tensor}'")]


def _widths(shape: ModelShape, tensor: int, expert_ranks: int) -> list[Obstacle]:
    quant = shape.quantisation
    found = []
    if shape.moe_intermediate:
        stored = None if shape.architecture in _CUT_AT_SCALES else quant
        found += _width("routed expert", shape.moe_intermediate, expert_ranks, stored, experts=True)
    if shape.shared_intermediate:
        found += _width("shared expert", shape.shared_intermediate, tensor, quant)
    dense = not shape.moe_intermediate or not shape.all_layers_moe
    # In a config with experts, `intermediate_size` is that of the dense layers only where it differs from theirs.
    if dense and shape.intermediate and shape.intermediate != shape.moe_intermediate:
        found += _width("dense MLP", shape.intermediate, tensor, quant)
    return found


def _width(name: str, width: int, tensor: int, quant: Quantisation | None, *, experts: bool = False) -> list[Obstacle]:
    if tensor == 1:
        return []
    if width % tensor:
        text = f"{name} width {width} % {tensor} = {width % tensor}"
        return [Obstacle(text, f"the engine asserts '{width} is not divisible by {tensor}'", expert=experts)]
    part = width // tensor
    if quant is None or _is_ignored(quant, name):
        return []
    if experts and quant.fp4_experts and part % MXFP4_GROUP:
        text = f"{name} width {width} / {tensor} = {part}, not a multiple of {MXFP4_GROUP}"
        why = f"one MXFP4 scale covers {MXFP4_GROUP} elements, and a rank cannot hold part of one"
        return [Obstacle(text, why, expert=True)]
    if quant.block is not None and not (experts and quant.fp4_experts):
        uneven = [size for size in dict.fromkeys(quant.block) if part % size]
        if uneven:
            text = f"{name} width {width} / {tensor} = {part}, not a multiple of the FP8 block {uneven[0]}"
            why = f"the engine raises '{part} is not divisible by weight quantization block_n = {quant.block[0]}'"
            return [Obstacle(text, why, expert=experts)]
    if quant.group_size is not None and part % quant.group_size:
        text = f"{name} width {width} / {tensor} = {part}, not a multiple of the group size {quant.group_size}"
        return [Obstacle(text, "groups of weights that share a scale would cross the ranks' borders", expert=experts)]
    return []


def _is_ignored(quant: Quantisation, name: str) -> bool:
    """Whether the quantisation leaves a part alone in all layers, by the words that checkpoints use for it.

    A pattern with a number speaks of some layers only; one that ends in `gate` speaks of the router.
    """
    word, others = _IGNORE_WORDS[name]
    return any(
        word in pattern
        and not any(other in pattern for other in others)
        and not any(character.isdigit() for character in pattern)
        and not pattern.rstrip("$*.").endswith("gate")
        for pattern in quant.ignored
    )
