"""From the control to the candidate of a rebalance, and back where that one does not come up.

Nothing is stopped before the candidate's gates have passed and its overlay is built.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from shardwright.campaign import audit
from shardwright.campaign.bundle_contents import put_refusal, put_request
from shardwright.campaign.engine_steps import (
    OnPhase,
    Say,
    alive_instances,
    bring_back,
    record_of_running,
    wait_for_candidate,
)
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.launch import start_locked, writing
from shardwright.campaign.marks import clear_mark
from shardwright.campaign.overlays import build_for
from shardwright.campaign.rebalance.arm_steps import begin_arm, bundle_of
from shardwright.campaign.rebalance.arms import Arm, Campaign, keep_campaign, read_campaign
from shardwright.campaign.records import record_of
from shardwright.campaign.request import Request, refuse_rejected
from shardwright.campaign.way_back import make_way
from shardwright.errors import DeployError, UsageError
from shardwright.runtime.base import Runtime
from shardwright.runtime.wait import ignore_event


def boot_candidate(
    request: Request,
    sets: Sequence[str],
    environ: Mapping[str, str],
    *,
    restore: bool,
    message: str = "",
    say: Say,
    on_phase: OnPhase = ignore_event,
) -> Arm:
    """Stop the control, start the candidate, and wait until it answers. Killed, it is taken up by the same call.

    When it does not come up the control is started again, unless `restore` is off; DeployError in either case.
    """
    deployment, state_dir = request.deployment, request.project.state_dir()
    name = deployment.name
    refuse_rejected(request, "not booted")
    with writing(state_dir, name, f"deploy rebalance boot {name}", message):
        campaign = read_campaign(state_dir, name)
        control = campaign.arm("control")
        if control.record.digest == deployment.digest:
            raise UsageError(
                "the candidate is the control: nothing differs between them",
                fix="name another split, or give --set for what is to change",
            )
        build_for(deployment)
        arm = campaign.candidate
        if arm is None or arm.record.digest != deployment.digest or bundle_of(request, arm).sealed:
            arm = begin_arm("candidate", request, record_of(deployment, time.time()), sets, control.mode)
        campaign = campaign.with_arm(arm)
        keep_campaign(state_dir, name, campaign)
        runtime = runtime_of(deployment.runtime, request.project.root)
        try:
            _switch(request, environ, runtime, control, arm, say, on_phase)
        except DeployError as error:
            try:
                put_refusal(bundle_of(request, arm), error)
                keep_campaign(state_dir, name, Campaign(control))
                audit.note(state_dir, "boot", name, deployment.instance_name, detail="failed")
                say(f"evidence: {arm.run}")
            finally:
                if restore:
                    bring_back(
                        request.project, runtime, control.record, environ, deed="restore", say=say, on_phase=on_phase
                    )
                    clear_mark(state_dir, "rollback", name)
                else:
                    say(f"the control {control.record.instance} stays stopped")
            raise
        audit.note(state_dir, "boot", name, deployment.instance_name, detail=",".join(map(str, arm.partition)))
        say(f"{deployment.instance_name} answers")
        return arm


def _switch(
    request: Request,
    environ: Mapping[str, str],
    runtime: Runtime,
    control: Arm,
    arm: Arm,
    say: Say,
    on_phase: OnPhase,
) -> None:
    deployment, bundle = request.deployment, bundle_of(request, arm)
    put_request(bundle, request, arm.role)
    for state in alive_instances(runtime, deployment.name):
        if state.name != deployment.instance_name:
            make_way(request.project, runtime, state, control.record)
            say(f"stopped {state.name} (kept)")
    if not alive_instances(runtime, deployment.name):
        start_locked(request, environ)
        say(f"started {deployment.instance_name}")
    wait_for_candidate(request, runtime, record_of_running(request, runtime), bundle, environ, on_phase)
