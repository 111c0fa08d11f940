"""Climb the ladder of proof for a layout at an odd tensor parallel size."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from shardwright.campaign.request import Request
from shardwright.campaign.vtp import parity
from shardwright.campaign.vtp.checks import judge, run_check
from shardwright.campaign.vtp.ladder import keep, require_below
from shardwright.campaign.vtp.target import alignment_of_deployment
from shardwright.errors import DeployError, UsageError
from shardwright.facts.vtp_ladder import (
    RUNGS,
    Evidence,
    Standing,
    evidence_file,
    read_evidence,
    standings,
    subject_of,
)
from shardwright.gates.virtual_tp import hardware_of
from shardwright.overlay.patch import Patch
from shardwright.plan.virtual_sizes import model_sizes
from shardwright.plan.virtual_tp import VirtualPlan, make_plan
from shardwright.probes.metrics import read_metrics
from shardwright.probes.wire import Endpoint
from shardwright.resolve.deployment import Deployment

PATCH = "virtual-tp"
Connect = Callable[[], tuple[Endpoint, str]]
"""Finds the running server and its model, once everything that needs neither is in order."""
_NEXT = {
    "parity": " --rung parity --against FILE; FILE: --record FILE on a layout with a TP that divides",
    "graph-replay": " --rung graph-replay",
    "mtp": " --rung mtp --against FILE, with MTP on; FILE: --record FILE with MTP off",
    "speed": " --rung speed",
}


class Climb(Struct, frozen=True):
    """What the rungs of one layout are about, and where their evidence lies."""

    deployment: Deployment
    plan: VirtualPlan
    patch: Patch
    subject: str
    file: Path

    def standings(self) -> tuple[Standing, ...]:
        return standings(read_evidence(self.file), self.subject, hardware_of(self.deployment))


def open_climb(request: Request) -> Climb:
    """The ladder of a layout. UsageError for one without the patch, DeployError where its model is not known."""
    deployment, facts = request.deployment, request.facts.virtual_tp
    patch = next((patch for patch in deployment.patches if patch.id == PATCH), None)
    if patch is None:
        raise UsageError(f"{deployment.name} does not name the patch {PATCH}", fix="name a layout that does")
    if facts is None:
        raise DeployError(f"the config of {deployment.model.path} is not known", fix="set model.facts")
    sizes = model_sizes(facts.config, facts.source)
    plan = make_plan(sizes, deployment.parallel.tensor, alignment_of_deployment(deployment, facts, sizes.model_type))
    subject = subject_of(plan.sidecar_entry(), patch.digest, deployment.engine.vllm)
    file = evidence_file(request.project.state_dir(), deployment.name)
    return Climb(deployment, plan, patch, subject, file)


def climb_unattended(climb: Climb, python: str | None, on_try: Callable[[str], None]) -> None:
    """Try the rungs that need no server, from the lowest that is not green; stop at the first that fails."""
    for standing in climb.standings():
        rung = standing.rung
        if rung.needs == "server":
            return
        if standing.state == "green":
            continue
        on_try(rung.name)
        if rung.needs == "nothing":
            faults, where = _plan_faults(climb.plan), "computed"
            detail = "every ratio is whole, every rank holds real heads and expert rows"
        else:
            faults = judge(rung.name, climb.plan, run_check(rung.name, climb.plan, python, Path(climb.patch.directory)))
            where, detail = f"CPU {platform.machine()}", "every control was found wrong"
        if not _keep(climb, rung.name, where, faults, detail):
            return


def try_parity(climb: Climb, connect: Connect, reference: Path, tolerance: float) -> bool:
    """Compare the running server with a recording of another TP. MTP must be off on both."""
    require_below(climb.standings(), "parity")
    recorded = parity.read_recording(reference)
    if climb.deployment.speculation.active or recorded.speculative != "none":
        raise UsageError("parity is shown with MTP off on both sides", fix="SPEC_METHOD=none")
    if recorded.tp == climb.plan.tp:
        raise UsageError(f"the recording is of TP={recorded.tp} itself", fix="record on a TP that divides, such as 2")
    if not _divides(climb.plan, recorded.tp):
        text = f"the recording is of TP={recorded.tp}, which does not divide the model either"
        raise UsageError(text, fix="record on a TP that divides, such as 2")
    faults, numbers = parity.compare(recorded, _recording(climb, *connect()), tolerance)
    return _keep(climb, "parity", hardware_of(climb.deployment), faults, f"against TP={recorded.tp}: {numbers}")


def try_replay(climb: Climb, connect: Connect) -> bool:
    require_below(climb.standings(), "graph-replay")
    if climb.deployment.speculation.active:
        raise UsageError("graph replay is shown with MTP off", fix="SPEC_METHOD=none")
    if any(argument.tokens[0] == "--enforce-eager" for argument in climb.deployment.engine_args):
        raise UsageError("the layout runs eager: there is no graph to replay", fix="remove serve.enforce_eager")
    faults, numbers = parity.repeats_agree(*connect())
    return _keep(climb, "graph-replay", hardware_of(climb.deployment), faults, numbers)


def try_mtp(climb: Climb, connect: Connect, reference: Path) -> bool:
    """The final tokens with MTP against a recording of the same TP without it, and drafts accepted meanwhile."""
    require_below(climb.standings(), "mtp")
    recorded = parity.read_recording(reference)
    if not climb.deployment.speculation.active:
        raise UsageError("the layout has MTP off", fix="SPEC_METHOD=mtp, with two draft tokens")
    if recorded.speculative != "none" or recorded.tp != climb.plan.tp:
        raise UsageError(f"the recording must be of TP={climb.plan.tp} with MTP off", fix="record it before MTP is on")
    endpoint, model = connect()
    before = read_metrics(endpoint)
    got = _recording(climb, endpoint, model)
    drafts = parity.drafts_between(before, read_metrics(endpoint))
    faults, numbers = parity.final_tokens_agree(recorded, got, drafts)
    return _keep(climb, "mtp", hardware_of(climb.deployment), faults, numbers)


def try_speed(climb: Climb, connect: Connect) -> bool:
    require_below(climb.standings(), "speed")
    rate = parity.tokens_per_second(*connect())
    return _keep(climb, "speed", hardware_of(climb.deployment), [], f"{rate:.1f} tokens/s, one stream")


def save_recording(deployment: Deployment, endpoint: Endpoint, model: str, file: Path) -> parity.Recording:
    """Record the running server of any layout, the reference of `try_parity` and `try_mtp`."""
    speculative = deployment.speculation.method if deployment.speculation.active else "none"
    made = parity.record(
        endpoint, model, deployment.name, deployment.parallel.tensor, deployment.engine.vllm, speculative
    )
    parity.write_recording(file, made)
    return made


def next_step(climb: Climb, found: tuple[Standing, ...]) -> str:
    """The command that tries the lowest rung that is not green; "" where all are."""
    rung = next((standing.rung.name for standing in found if standing.state != "green"), None)
    return "" if rung is None else f"deploy vtp qualify {climb.deployment.name}{_NEXT.get(rung, '')}"


def complete(found: tuple[Standing, ...]) -> bool:
    return len(found) == len(RUNGS) and all(standing.state == "green" for standing in found)


def _divides(plan: VirtualPlan, tp: int) -> bool:
    return all(axis.original % tp == 0 for axis in plan.axes.values())


def _plan_faults(plan: VirtualPlan) -> list[str]:
    faults = [f"{ratio.tensor}: {ratio.units} -> {ratio.padded} {ratio.unit}" for ratio in plan.inexact]
    if plan.idle.attention:
        faults.append(f"no real attention head on rank {', '.join(map(str, plan.idle.attention))}")
    if plan.idle.experts:
        faults.append(f"no real expert row on rank {', '.join(map(str, plan.idle.experts))}")
    return faults


def _recording(climb: Climb, endpoint: Endpoint, model: str) -> parity.Recording:
    deployment = climb.deployment
    speculative = deployment.speculation.method if deployment.speculation.active else "none"
    return parity.record(endpoint, model, deployment.name, climb.plan.tp, deployment.engine.vllm, speculative)


def _keep(climb: Climb, rung: str, where: str, faults: list[str], detail: str) -> bool:
    text = "; ".join(faults[:3]) if faults else detail
    keep(climb.file, Evidence(rung, not faults, where, text, climb.subject))
    return not faults
