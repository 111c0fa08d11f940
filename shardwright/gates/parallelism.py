"""Tensor, expert, data, decode-context and prefill-context parallelism against the model's sizes."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.shape import ModelShape
from shardwright.facts.versions import version_in
from shardwright.gates.finding import Finding
from shardwright.gates.options import flag_arguments, json_of, number_of, switched_on, value_of, whole_number
from shardwright.plan.divisibility import largest_tensor, obstacles
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

# A patch with this remedy pads the weights; what it needs is judged by the gate virtual-tp.
PADDING_REMEDY = "virtual-tp"

_EVEN_EXPERTS = "deepseek_v4"

# Flags that look like a way to more KV cache and are none, with the reason.
_CAPACITY_NEUTRAL = (
    ("--num-gpu-blocks-override", "it makes no memory: too large ends in out-of-memory, smaller wastes it"),
    ("--kv-cache-memory-bytes", "it pins the bytes of the cache, within the same physical memory"),
    ("--block-size", "it changes the waste at the end of a request, not the pool"),
)


def check_tensor_parallel(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`tensor-parallel`: TP divides heads, KV heads, vocabulary and widths, in units of the quantisation."""
    tensor, shape = deployment.parallel.tensor, facts.shape
    if shape is None or deployment.engine.command is not None:
        return []
    if any(PADDING_REMEDY in patch.remedies for patch in deployment.patches):
        return []
    expert, replicas = _expert_parallel(deployment), _replicas(deployment)
    return [
        Finding(
            "tensor-parallel",
            "reject",
            f"TP={tensor}{f' x {replicas} (DP x PCP)' if obstacle.expert and replicas > 1 else ''} does not fit "
            f"{shape.architecture or 'the model'}: {obstacle.what}",
            why=obstacle.why,
            fix=_ways_out(deployment, shape, expert, obstacle.expert),
            evidence=shape.source,
        )
        for obstacle in obstacles(shape, tensor, expert_parallel=expert, replicas=replicas)
    ]


def _replicas(deployment: Deployment) -> int:
    """Ranks beside those of TP over which routed experts are cut or spread: DP x PCP."""
    data = number_of(deployment, "--data-parallel-size", 1)
    return data * number_of(deployment, "--prefill-context-parallel-size", 1)


def _ways_out(deployment: Deployment, shape: ModelShape, expert: bool, expert_helps: bool) -> str:
    tensor = deployment.parallel.tensor
    largest = largest_tensor(shape, tensor, expert_parallel=expert, replicas=_replicas(deployment))
    ways = []
    if expert_helps and not obstacles(shape, tensor, expert_parallel=True):
        ways.append("serve: {enable_expert_parallel: true}, which keeps each routed expert whole")
    if largest is not None:
        ways.append(f"TP_SIZE={largest}, the largest below it that works")
    if shape.heads is not None and shape.heads % tensor:
        ways.append(f"TP_SIZE=1 PP_SIZE={tensor * deployment.parallel.pipeline}, or so many independent servers")
        ways.append("patches: [virtual-tp], which pads the weights")
    return "; or ".join(ways)


def _expert_parallel(deployment: Deployment) -> bool:
    return bool(switched_on(deployment, "--enable-expert-parallel"))


def check_expert_parallel(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`expert-parallel`: the model has experts, they spread over the ranks, and the gain is not assumed."""
    if not _expert_parallel(deployment):
        return _balancing(deployment, 0)
    shape = facts.shape
    if shape is not None and shape.architecture and not (shape.experts or shape.moe_intermediate):
        text = f"expert parallelism is asked for, but {shape.architecture} has no experts"
        return [
            Finding("expert-parallel", "reject", text, why="the engine raises", fix="remove enable_expert_parallel")
        ]
    ranks = deployment.parallel.tensor * _replicas(deployment)
    findings = _balancing(deployment, ranks)
    findings += _uneven_experts(deployment, shape, shape.experts, ranks) if shape and shape.experts else []
    if value_of(deployment, "--all2all-backend") in (None, "allgather_reducescatter", "naive"):
        findings.append(
            Finding(
                "expert-parallel",
                "info",
                "expert parallelism runs over all-gather and reduce-scatter, which is no all-to-all",
                why="measured at TP=8: 1.5 % slower than without, and no more KV cache",
                fix="choose a real all2all_backend that the image has, or leave enable_expert_parallel out",
            )
        )
    return findings


def _balancing(deployment: Deployment, ranks: int) -> list[Finding]:
    """Expert load balancing needs expert parallelism over several `ranks`, and its spare experts need it in turn."""
    spare = json_of(deployment, "--eplb-config").get("num_redundant_experts", 0)
    if not switched_on(deployment, "--enable-eplb"):
        if switched_on(deployment, "--enable-elastic-ep"):
            text, why = "enable_elastic_ep is set without enable_eplb", "the engine raises"
            return [Finding("expert-parallel", "reject", text, why=why, fix="serve: {enable_eplb: true}")]
        if not spare:
            return []
        text = f"num_redundant_experts is {spare}, but enable_eplb is not set"
        why = "the engine raises: spare experts are placed by expert load balancing only"
        return [Finding("expert-parallel", "reject", text, why=why, fix="serve: {enable_eplb: true}, or leave it out")]
    if ranks > 1 and deployment.platform != "cpu":
        return []
    if deployment.platform == "cpu":
        text, why = "enable_eplb is set on the CPU engine", "the engine has expert load balancing on GPUs only"
    elif ranks:
        text, why = "enable_eplb is set with one rank", "the engine raises 'EPLB requires tensor ... parallelism'"
    else:
        text = "enable_eplb is set without expert parallelism"
        why = "the engine raises 'enable_expert_parallel must be True to use EPLB.'"
    fix = "serve: {enable_expert_parallel: true} over several ranks, or leave enable_eplb out"
    return [Finding("expert-parallel", "reject", text, why=why, fix=fix)]


def _uneven_experts(deployment: Deployment, shape: ModelShape, experts: int, ranks: int) -> list[Finding]:
    """Most models place an uneven remainder; with load balancing, and in DeepSeek-V4's own code, it is an error."""
    redundant = json_of(deployment, "--eplb-config").get("num_redundant_experts", 0)
    physical = experts + (redundant if isinstance(redundant, int) else 0)
    if physical % ranks == 0:
        return []
    strict = switched_on(deployment, "--enable-eplb") or shape.model_type.startswith(_EVEN_EXPERTS)
    missing = ranks - physical % ranks
    return [
        Finding(
            "expert-parallel",
            "reject" if strict or not shape.architecture else "info",
            f"{physical} experts do not spread evenly over {ranks} ranks ({physical} % {ranks} = {physical % ranks})",
            why=f"the engine raises 'n_physical_experts={physical} must be divisible by ep_size={ranks}' for "
            "DeepSeek-V4 and with expert load balancing; others give some ranks one expert more",
            fix=f"enable_eplb with num_redundant_experts: {missing} gives {physical + missing}; it cures nothing "
            "but this",
        )
    ]


def check_context_parallel(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`context-parallel`: DCP and PCP sizes that the engine takes for this model and version."""
    decode = number_of(deployment, "--decode-context-parallel-size", 1)
    prefill = number_of(deployment, "--prefill-context-parallel-size", 1)
    tensor = deployment.parallel.tensor
    findings = []
    if prefill == 1 and (decode == 0 or tensor % decode):
        why = f"the engine raises 'tp_size={tensor} must be divisible by dcp_size={decode}.'"
        findings.append(
            _context(f"TP={tensor} is not a multiple of DCP={decode}", why, f"DCP 1 to {tensor}, dividing it")
        )
    if prefill > 1 and decode not in (1, prefill, tensor * prefill):
        valid = ", ".join(str(size) for size in sorted({1, prefill, tensor * prefill}))
        why = "decode context is spread over no axis, the PCP axis, or all of TP x PCP"
        findings.append(_context(f"DCP={decode} does not go with TP={tensor}, PCP={prefill}", why, f"DCP of {valid}"))
    if decode > 1 and facts.shape is not None and not facts.shape.mla and facts.shape.kv_heads and not findings:
        findings += _decode_over_kv_heads(tensor, decode, facts.shape.heads, facts.shape.kv_heads)
    if prefill > 1:
        findings += _prefill(deployment, facts)
    return findings


def _context(message: str, why: str, fix: str) -> Finding:
    return Finding("context-parallel", "reject", message, why=why, fix=f"use {fix}")


def _decode_over_kv_heads(tensor: int, decode: int, heads: int | None, kv_heads: int) -> list[Finding]:
    if tensor <= kv_heads:
        why = (
            "decode context parallelism shards what tensor parallelism would replicate, and here it replicates nothing"
        )
        text = f"DCP={decode} needs TP above the model's {kv_heads} KV heads, but TP={tensor}"
        return [_context(text, why, "a larger TP, or no DCP")]
    most = tensor // kv_heads
    if decode > most:
        text = f"DCP={decode} exceeds {most}, which is TP={tensor} over {kv_heads} KV heads"
        return [_context(text, "more shards than copies of a KV head", f"DCP of at most {most}")]
    queries = (heads or kv_heads) // kv_heads
    if queries % decode:
        text = f"{queries} query heads per KV head are not a multiple of DCP={decode}"
        return [_context(text, "the engine raises for GQA and MQA", "a DCP that divides them")]
    return []


def _prefill(deployment: Deployment, facts: Facts) -> list[Finding]:
    version = deployment.engine.vllm
    findings = []
    if facts.shape is None:
        text = "whether the model has latent (MLA) attention, which PCP needs, is not known"
        findings.append(Finding("context-parallel", "unknown", text, fix="set model.facts"))
    elif not facts.shape.mla:
        why = "the engine raises 'Model Runner V2 does not yet support: prefill context parallelism'"
        findings.append(_context("PCP needs a model with latent (MLA) attention", why, "TP or PP"))
    speculation = deployment.speculation
    takes = () if version_in(version, "<0.30") else ("mtp", "dspark")
    if speculation.active and speculation.family not in takes:
        why = f"its prefill context parallelism takes {' or '.join(takes) or 'no speculation'}"
        findings.append(_context(f"PCP with {speculation.method} on vLLM {version}", why, "SPEC_METHOD=none"))
    text = "PCP takes cards of its own and adds no KV shards"
    findings.append(Finding("context-parallel", "info", text, why="it shortens prefill only; PP or DCP add capacity"))
    return findings


def check_capacity_flags(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`capacity-flags`: nothing is refused; flags that seem to give KV cache and do not are named."""
    reasons = dict(_CAPACITY_NEUTRAL)
    findings = [
        Finding("capacity-flags", "info", f"{name} adds no KV cache", why=reasons[name])
        for name, _, _ in flag_arguments(deployment)
        if name in reasons
    ]
    replicas = whole_number(value_of(deployment, "--data-parallel-size"))
    if replicas is not None and replicas > 1:
        text = "data parallelism multiplies throughput, not the KV cache of a request"
        findings.append(Finding("capacity-flags", "info", text, why="each replica holds all weights again"))
    return findings


def check_hybrid_stages(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`hybrid-stages`: in a model that mixes linear and full attention every stage owns a full-attention layer."""
    kinds = facts.shape.full_attention if facts.shape else ()
    if not kinds or deployment.parallel.pipeline == 1:
        return []
    bare = [stage for stage in plan.stages if not any(kinds[stage.first_layer : stage.end_layer])]
    if not bare:
        return []
    where = ", ".join(f"{stage.index} [{stage.first_layer},{stage.end_layer})" for stage in bare)
    return [
        Finding(
            "hybrid-stages",
            "reject",
            f"stages without a full-attention layer: {where}",
            why="the engine sizes its cache pages by the attention layers of each stage and finds none there",
            fix="move the boundaries so that every stage owns one of the full-attention layers "
            + ",".join(str(layer) for layer, full in enumerate(kinds) if full),
            evidence=facts.shape.source if facts.shape else "",
        )
    ]
