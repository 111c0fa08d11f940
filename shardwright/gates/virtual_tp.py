"""`virtual-tp`: an odd tensor parallel size needs a padded model folder, the patch, and a known set of backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shardwright.errors import DeployError
from shardwright.facts.facts import Facts
from shardwright.facts.versions import version_in
from shardwright.facts.virtual_tp import SIDECAR_KEY, Capability, VirtualTpFacts
from shardwright.facts.vtp_ladder import standings, subject_of
from shardwright.gates.capabilities import capabilities_of
from shardwright.gates.finding import Finding
from shardwright.gates.options import json_of, switched_on, value_of, whole_number
from shardwright.gates.tactics import tactics_findings
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

if TYPE_CHECKING:
    from shardwright.plan.virtual_tp import VirtualPlan

GATE = "virtual-tp"
PATCH = "virtual-tp"
IDLE_WAIVER = "idle-ranks"
_GIB = 1 << 30
_DEFAULT_UTILIZATION = 0.9


def check_virtual_tp(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    patched = any(patch.id == PATCH for patch in deployment.patches)
    found = facts.virtual_tp
    if found is None:
        if not patched:
            return []
        text = "whether the model folder carries a plan for this TP cannot be told: its config.json is not known"
        return [Finding(GATE, "unknown", text, fix="set model.facts, or run where the model folder is")]
    entry = found.config.get(SIDECAR_KEY)
    if not isinstance(entry, Mapping):
        return _no_plan(deployment, facts) if patched else []
    if not patched:
        text = f"{found.source} is padded for TP={entry.get('tp_size')}, but the layout does not name the patch {PATCH}"
        why = (
            "the engine would start and cut packed expert bytes and scale groups at the wrong places, without an error"
        )
        return [Finding(GATE, "reject", text, why=why, fix=f"add {PATCH} to patches, or serve the checkpoint itself")]
    return [*_entry_findings(deployment, found, entry), *_topology_findings(deployment), *_planned(deployment, facts)]


def _no_plan(deployment: Deployment, facts: Facts) -> list[Finding]:
    tensor, shape = deployment.parallel.tensor, facts.shape
    sizes = () if shape is None else (shape.heads, shape.vocabulary, shape.moe_intermediate)
    if all(size is None or size % tensor == 0 for size in sizes):
        return [Finding(GATE, "info", f"the patch {PATCH} does nothing here: the model folder carries no plan")]
    return [
        Finding(
            GATE,
            "reject",
            f"TP={tensor} needs a padded model folder, and {deployment.model.path} is the checkpoint itself",
            why="the patch pads by the plan in config.json and does nothing without one; the engine refuses the TP",
            fix=f"deploy vtp sidecar {deployment.model.path} --tp {tensor} --out DIR, and model.path: DIR",
        )
    ]


def _entry_findings(deployment: Deployment, found: VirtualTpFacts, entry: Mapping[str, Any]) -> Iterator[Finding]:
    tensor, axes = deployment.parallel.tensor, entry.get("axes")
    if entry.get("tp_size") != tensor:
        text = f"the model folder was written for TP={entry.get('tp_size')}, but the layout says TP={tensor}"
        why = "72 heads in 9 groups at TP=2 load without an error and answer nonsense"
        fix = f"deploy vtp sidecar MODEL --tp {tensor} --out DIR, or TP_SIZE={entry.get('tp_size')}"
        yield Finding(GATE, "reject", text, why=why, fix=fix, evidence=found.source)
    vocabulary = axes.get("vocabulary") if isinstance(axes, Mapping) else None
    if isinstance(vocabulary, list) and vocabulary and found.config.get("vocab_size") != vocabulary[0]:
        text = f"vocab_size was padded to {found.config.get('vocab_size')}, the checkpoint has {vocabulary[0]}"
        why = "padded tokens have a logit of 0 and can be sampled; hash routing tables change their shape"
        yield Finding(GATE, "reject", text, why=why, fix="write the folder anew: deploy vtp sidecar")
    checkpoint = str(entry.get("checkpoint") or "")
    if deployment.runtime == "docker" and checkpoint and not _mounted_in_place(deployment, checkpoint):
        text = f"the links of the model folder lead to {checkpoint}, which the container does not have at that path"
        fix = f"container: {{mounts: [{{source: {checkpoint}, target: {checkpoint}}}]}}"
        yield Finding(GATE, "reject", text, why="the engine would find no weights behind the links", fix=fix)


def _mounted_in_place(deployment: Deployment, path: str) -> bool:
    return any(
        mount.source == mount.target and (path == mount.target or path.startswith(mount.target.rstrip("/") + "/"))
        for mount in deployment.mounts
    )


def _topology_findings(deployment: Deployment) -> Iterator[Finding]:
    why = "virtual padding is defined for tensor parallelism alone"
    if switched_on(deployment, "--enable-expert-parallel"):
        text = "expert parallelism is on"
        yield Finding(GATE, "reject", text, why=why, fix="serve: {enable_expert_parallel: false}")
    for flag in ("--data-parallel-size", "--prefill-context-parallel-size", "--decode-context-parallel-size"):
        size = whole_number(value_of(deployment, flag))
        if size is not None and size > 1:
            yield Finding(GATE, "reject", f"{flag} {value_of(deployment, flag)} is set", why=why, fix=f"remove {flag}")


def _planned(deployment: Deployment, facts: Facts) -> Iterator[Finding]:
    from shardwright.plan.virtual_sizes import alignment_for, model_sizes
    from shardwright.plan.virtual_tp import make_plan

    found = facts.virtual_tp
    assert found is not None
    on_cpu = deployment.platform == "cpu"
    attention = value_of(deployment, "--attention-backend") or ("cpu" if on_cpu else "")
    moe = value_of(deployment, "--moe-backend") or ("cpu" if on_cpu else "")
    version = deployment.engine.vllm
    if not on_cpu:
        yield from _capability(deployment, facts, attention, moe)
    try:
        sizes = model_sizes(found.config, found.source)
        alignment = alignment_for(found.table, sizes.model_type, attention, moe, version)
        plan = make_plan(sizes, deployment.parallel.tensor, alignment)
    except DeployError as error:
        if on_cpu or found.table.moe(moe, version) is not None:
            yield Finding(GATE, "reject", error.what, why=error.why, fix=error.fix)
        return
    yield from _padding(deployment, plan, found)
    yield from _status(deployment, plan, found)
    yield from _idle(deployment, plan)
    yield from _memory(deployment, facts, plan)
    if not on_cpu:
        yield from _tactics(deployment, facts, plan, moe)


def _padding(deployment: Deployment, plan: VirtualPlan, found: VirtualTpFacts) -> Iterator[Finding]:
    for ratio in plan.inexact:
        text = f"{ratio.tensor}: {ratio.units} {ratio.unit} would become {ratio.padded}, which is not whole"
        yield Finding(GATE, "reject", text, why="a fraction of a scale group cannot be padded", fix="use another TP")
    written = found.config.get(SIDECAR_KEY, {}).get("axes")
    wanted = plan.sidecar_entry()["axes"]
    if plan.tp == found.config.get(SIDECAR_KEY, {}).get("tp_size") and written != wanted:
        text = "the plan in the model folder is not the one that these sizes and backends give"
        yield Finding(GATE, "reject", text, fix="write the folder anew: deploy vtp sidecar", evidence=f"{wanted}")


def hardware_of(deployment: Deployment) -> str:
    """The hardware that evidence from a server of this layout is about."""
    hardware = deployment.hardware
    return f"{hardware.gpus} cards of {hardware.compute_capability}" if hardware else deployment.platform


def _status(deployment: Deployment, plan: VirtualPlan, found: VirtualTpFacts) -> Iterator[Finding]:
    """`ready` is a claim about this hardware: it needs every rung below the speed, and MTP's where MTP is on."""
    if deployment.status != "ready":
        return
    digest = next(patch.digest for patch in deployment.patches if patch.id == PATCH)
    subject = subject_of(plan.sidecar_entry(), digest, deployment.engine.vllm)
    spare = {"speed"} if deployment.speculation.active else {"speed", "mtp"}
    missing = [
        f"{standing.rung.name} ({standing.state})"
        for standing in standings(found.evidence, subject, hardware_of(deployment))
        if standing.state != "green" and standing.rung.name not in spare
    ]
    if missing:
        yield Finding(
            GATE,
            "reject",
            f"status is ready, but these rungs are not green on {hardware_of(deployment)}: {', '.join(missing)}",
            why="a padded model that loads and answers proves nothing; each rung was made for a fault without an error",
            fix=f"deploy vtp qualify {deployment.name}, or status: testing",
        )


def _idle(deployment: Deployment, plan: VirtualPlan) -> Iterator[Finding]:
    if not plan.idle.attention and not plan.idle.experts:
        return
    parts = [
        f"{what} on rank {', '.join(map(str, ranks))}"
        for what, ranks in (("no real attention head", plan.idle.attention), ("no real expert row", plan.idle.experts))
        if ranks
    ]
    waived = IDLE_WAIVER in deployment.waivers
    yield Finding(
        GATE,
        "warn" if waived else "reject",
        f"TP={plan.tp} leaves {' and '.join(parts)}",
        why="such a rank holds padding only: it costs a card and communication and speeds nothing up",
        fix="" if waived else f"use a smaller TP, or allow: [{IDLE_WAIVER}]",
    )


def _memory(deployment: Deployment, facts: Facts, plan: VirtualPlan) -> Iterator[Finding]:
    cards = [gpu.memory_gib for gpu in facts.gpus] if facts.gpus else []
    if deployment.hardware is not None and not cards:
        cards = [deployment.hardware.memory_gib]
    if not cards or deployment.platform == "cpu":
        return
    try:
        utilization = float(value_of(deployment, "--gpu-memory-utilization") or _DEFAULT_UTILIZATION)
    except ValueError:
        return
    weights = plan.memory.known + (plan.memory.draft if deployment.speculation.active else 0)
    budget_gib = min(cards) * utilization
    if weights / _GIB >= budget_gib:
        yield Finding(
            GATE,
            "reject",
            f"each rank needs {weights / _GIB:.1f} GiB of weights with the kernel's padding, and may use "
            f"{utilization:g} x {min(cards):g} = {budget_gib:.1f} GiB",
            why=f"the kernel rounds {plan.axes['routed_intermediate'].local} expert rows up to "
            f"{plan.axes['routed_intermediate'].kernel_local}; nothing would be left for the KV cache",
            fix="use more cards, or cards with more memory",
        )


def _capability(deployment: Deployment, facts: Facts, attention: str, moe: str) -> Iterator[Finding]:
    found = facts.virtual_tp
    assert found is not None
    model_type = str(found.config.get("model_type", ""))
    rows = [row for row in found.table.capabilities if version_in(deployment.engine.vllm, row.vllm)]
    known = "; ".join(f"{row.attention} + {row.moe} on {row.compute_capability}.x" for row in rows)
    majors = _majors(deployment, facts)
    if not majors:
        yield Finding(GATE, "unknown", "the compute capability of the cards is not known", fix="set hardware:")
    for major in majors:
        asked = (model_type, major, attention, moe)
        row = next((row for row in rows if _tuple_of(row) == asked), None)
        if row is None:
            shown = f"{attention or 'no attention backend'} + {moe or 'no MoE backend'}"
            yield Finding(
                GATE,
                "reject",
                f"{model_type or 'this model'} with {shown} on compute capability {major}.x "
                f"and vLLM {deployment.engine.vllm} is not a combination that odd TP was worked out for",
                why="both backends must be named: what the engine picks by itself may cut or convert in another way",
                fix=f"known: {known}",
            )
        else:
            yield Finding(
                GATE,
                "info",
                f"on {major}.x the engine runs MXFP4 experts with {row.activations} activations"
                + ("" if row.activations == "BF16" else ", where BF16 may be expected"),
                why=f"proven so far: {row.proven}",
            )


def _tuple_of(row: Capability) -> tuple[str, str, str, str]:
    return (row.model_type, row.compute_capability, row.attention, row.moe)


def _majors(deployment: Deployment, facts: Facts) -> list[str]:
    return sorted({capability.partition(".")[0] for capability in capabilities_of(deployment, facts)[0]})


def _tactics(deployment: Deployment, facts: Facts, plan: VirtualPlan, moe: str) -> Iterator[Finding]:
    found = facts.virtual_tp
    assert found is not None
    row, width = found.table.moe(moe, deployment.engine.vllm), plan.axes["routed_intermediate"].kernel_local
    if row is None or not row.tile_k or width % row.tile_k == 0 or _autotune_off(deployment):
        return
    yield from tactics_findings(GATE, width, row.tile_k, capabilities_of(deployment, facts)[0], found.tactic_filter)


def _autotune_off(deployment: Deployment) -> bool:
    if switched_on(deployment, "--enable-flashinfer-autotune") is False:
        return True
    return json_of(deployment, "--kernel-config").get("enable_flashinfer_autotune") is False
