"""What the cards must be able to do and to hold before the engine starts."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.gates.capabilities import capabilities_of, major_of
from shardwright.gates.devices import used_cards
from shardwright.gates.finding import Finding
from shardwright.gates.options import local_ranks, value_of
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

_CUSTOM_ALL_REDUCE_SIZES = (2, 4, 6, 8, 16)
_LEAST_MAJOR = 8


def check_card_capability(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`card-capability`: the cards compute in the formats of the weights."""
    if deployment.platform != "cuda":
        return []
    capabilities, source = capabilities_of(deployment, facts)
    old = [text for text in capabilities if (major := major_of(text)) is not None and major < _LEAST_MAJOR]
    if not old:
        return []
    findings = []
    quant = facts.shape.quantisation if facts.shape else None
    if quant is not None and quant.fp4_experts:
        text = f"MXFP4 experts need compute capability 8.0 or above, and {source} have {', '.join(old)}"
        findings.append(Finding("card-capability", "reject", text, why="the engine has no kernel for them there"))
    if value_of(deployment, "--dtype") == "bfloat16":
        text = f"bfloat16 needs compute capability 8.0 or above, and {source} have {', '.join(old)}"
        findings.append(Finding("card-capability", "reject", text, fix="write serve: {dtype: half}"))
    return findings


def check_free_memory(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`free-memory`: every card has what gpu_memory_utilization asks for still free."""
    share = _utilization(deployment, facts)
    if deployment.platform != "cuda" or not facts.gpus or share is None:
        return []
    used = used_cards(deployment, facts)
    cards = enumerate(facts.gpus) if used is None else used
    lacking = [
        (index, gpu) for index, gpu in cards if gpu.free_gib is not None and gpu.free_gib < share * gpu.memory_gib
    ]
    if used is None and len(facts.gpus) - len(lacking) >= local_ranks(deployment):
        return []
    return [_lacks_memory(index, gpu, gpu.free_gib or 0.0, share) for index, gpu in lacking]


def _lacks_memory(index: int, gpu: Gpu, free_gib: float, share: float) -> Finding:
    return Finding(
        "free-memory",
        "reject",
        f"card {index}: {free_gib:.2f} of {gpu.memory_gib:.2f} GiB are free, "
        f"but {share:g} of it are asked for ({share * gpu.memory_gib:.2f} GiB)",
        why="another process holds the rest; the engine stops with 'Free memory on device ... is less than "
        "desired GPU memory utilization'",
        fix="nvidia-smi names the holder; or GPU_MEMORY_UTILIZATION="
        f"{max(0.0, int(free_gib / gpu.memory_gib * 100) / 100):g}",
    )


def _utilization(deployment: Deployment, facts: Facts) -> float | None:
    given = value_of(deployment, "--gpu-memory-utilization")
    if given is None and facts.engine is not None and facts.engine.table is not None:
        flags = facts.engine.table.flags
        given = next((flag.default for flag in flags if flag.name == "--gpu-memory-utilization"), None)
    try:
        return float(given) if given is not None else None
    except ValueError:
        return None


def check_custom_all_reduce_topology(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`all-reduce-topology`: what the links between the cards make of the custom all-reduce."""
    tensor = deployment.parallel.tensor
    if deployment.platform != "cuda" or tensor == 1 or deployment.engine.command is not None:
        return []
    chosen = next((item for item in deployment.engine_args if item.tokens[0] == "--disable-custom-all-reduce"), None)
    if chosen is not None and chosen.origin.kind != "rule":
        return []
    if tensor == 2 and facts.links == "pcie":
        return [
            Finding(
                "all-reduce-topology",
                "warn",
                "TP=2 over PCIe without NVLink: a rule switched custom all-reduce off, the layout does not say so",
                why="over patched or bifurcated PCIe, peer copies returned wrong data ('!!!!') or locked the host",
                fix="write serve: {disable_custom_all_reduce: true}; if answers are still constant, env: "
                '{NCCL_P2P_DISABLE: "1"}',
            )
        ]
    if tensor not in _CUSTOM_ALL_REDUCE_SIZES:
        sizes = ", ".join(str(size) for size in _CUSTOM_ALL_REDUCE_SIZES)
        text = f"custom all-reduce exists for {sizes} ranks; at TP={tensor} the engine switches it off by itself"
        return [Finding("all-reduce-topology", "info", text)]
    if tensor != 2 and facts.links in ("pairs", "pcie"):
        text = "custom all-reduce needs NVLink between all cards above TP=2; the engine switches it off by itself"
        return [Finding("all-reduce-topology", "info", text)]
    return []


def check_uneven_cards(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`uneven-cards`: different cards of one deployment are named, since the smallest decides."""
    if not facts.gpus or deployment.platform != "cuda":
        return []
    used = used_cards(deployment, facts)
    sizes = {round(gpu.memory_gib, 1) for gpu in (facts.gpus if used is None else [gpu for _, gpu in used])}
    if len(sizes) <= 1 or deployment.parallel.tensor == 1:
        return []
    text = f"cards of {' and '.join(f'{size:g}' for size in sorted(sizes))} GiB in one deployment"
    why = (
        "within a stage the smallest card decides; the order of CUDA_VISIBLE_DEVICES decides which stage a card serves"
    )
    return [Finding("uneven-cards", "info", text, why=why, fix="deploy plan search counts cards per stage")]
