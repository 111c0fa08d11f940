"""The steps of a rebalance beside the switch: ask the control, ask the candidate the same, decide.

Each step is on file at its end, and one that was killed is taken up by the same command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from shardwright.campaign import audit, hooks
from shardwright.campaign.engine_steps import Say, record_of_running
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.evidence import take_up
from shardwright.campaign.launch import writing
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.rebalance.ab import ARM, build_ab
from shardwright.campaign.rebalance.arm_steps import ask_arm, begin_arm
from shardwright.campaign.rebalance.arms import Arm, Campaign, keep_campaign, read_campaign
from shardwright.campaign.rebalance.comparison import Comparison
from shardwright.campaign.request import Request
from shardwright.campaign.verify import Verified, secret_values
from shardwright.campaign.way_back import note_accepted
from shardwright.errors import UsageError


def run_control(
    request: Request, sets: Sequence[str], environ: Mapping[str, str], mode: Mode, *, message: str = "", say: Say
) -> tuple[Arm, Verified]:
    """Ask the running split everything, as the reference. DeployError where what runs is not this layout."""
    name, state_dir = request.deployment.name, request.project.state_dir()
    with writing(state_dir, name, f"deploy rebalance control {name}", message):
        record = record_of_running(request, runtime_of(request.deployment.runtime, request.project.root))
        left = read_campaign(state_dir, name).control
        if left and not left.verified and left.record.digest == record.digest and left.mode == mode:
            campaign, arm = read_campaign(state_dir, name), left
        else:
            arm = begin_arm("control", request, record, sets, mode)
            campaign = Campaign(control=arm)
            keep_campaign(state_dir, name, campaign)
        return ask_arm(request, environ, campaign, arm, control=None, say=say)


def verify_candidate(
    request: Request, environ: Mapping[str, str], *, message: str = "", say: Say
) -> tuple[Arm, Verified]:
    """Ask the candidate what the control was asked. `request` is the candidate's."""
    name, state_dir = request.deployment.name, request.project.state_dir()
    with writing(state_dir, name, f"deploy rebalance verify {name}", message):
        campaign = read_campaign(state_dir, name)
        control, arm = campaign.arm("control"), campaign.arm("candidate")
        if not control.verified:
            raise UsageError("the control was not asked to the end", fix="deploy rebalance control")
        record_of_running(request, runtime_of(request.deployment.runtime, request.project.root))
        return ask_arm(request, environ, campaign, arm, control=Path(control.run), say=say)


def decide(request: Request, campaign: Campaign) -> tuple[Comparison, Path]:
    """Compare the arms, keep the verdict as evidence, and make an accepted arm one to roll back to.

    `request` is the candidate's. UsageError where an arm is missing or the two are not comparable.
    """
    deployment, state_dir = request.deployment, request.project.state_dir()
    name = deployment.name
    with writing(state_dir, name, f"deploy rebalance verdict {name}"):
        control, candidate = campaign.arm("control"), campaign.arm("candidate")
        for arm in (control, candidate):
            if not arm.verified:
                raise UsageError(f"the {arm.role} was not asked to the end", fix=_ASK[arm.role])
        bundle = take_up(campaign.ab, request.project.root, name, ARM, secret_values(deployment.secrets))
        keep_campaign(state_dir, name, replace(campaign, ab=str(bundle.folder)))
        comparison = build_ab(bundle, name, Path(control.run), Path(candidate.run))
        hooks.run_for(request.project, "verdict", deployment, run=bundle.folder, verdict=comparison.verdict)
        if comparison.verdict != "CONTROL_UNHEALTHY":
            note_accepted(request.project, control.record, control.run, control.overlay)
        if comparison.verdict == "PASS":
            note_accepted(request.project, candidate.record, candidate.run, candidate.overlay)
        audit.note(state_dir, "verdict", name, candidate.record.instance, detail=comparison.verdict)
        return comparison, bundle.folder


_ASK = {"control": "deploy rebalance control", "candidate": "deploy rebalance verify"}
