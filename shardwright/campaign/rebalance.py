"""The steps of a rebalance: ask the control, switch to the candidate, ask it the same. Each step is on file at its end.

Nothing is stopped before the candidate's gates have passed and its overlay is built. A step that was killed is taken
up by the same command.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from shardwright.campaign import audit, hooks
from shardwright.campaign.ab import build_ab
from shardwright.campaign.arms import Arm, Campaign, Role, keep_campaign, read_campaign
from shardwright.campaign.bundle_contents import put_engine, put_observed, put_proof, put_request
from shardwright.campaign.comparison import Comparison
from shardwright.campaign.engine_steps import (
    OnPhase,
    Say,
    alive_instances,
    api_key,
    record_of_running,
    start_again,
    wait_for,
)
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.evidence import Bundle, free_folder, open_bundle
from shardwright.campaign.launch import start_locked, stop_locked, writing
from shardwright.campaign.overlays import build_for
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.proof import prove_deployment
from shardwright.campaign.proven import ProvenRun, add_proven
from shardwright.campaign.records import StartRecord, record_of
from shardwright.campaign.request import Request
from shardwright.campaign.verify import Verified, secret_values, verify
from shardwright.errors import DeployError, UsageError
from shardwright.probes.wire import Endpoint
from shardwright.runtime.base import Runtime
from shardwright.runtime.wait import ignore_event


def run_control(
    request: Request, sets: Sequence[str], environ: Mapping[str, str], mode: Mode, *, message: str = "", say: Say
) -> tuple[Arm, Verified]:
    """Ask the running split everything, as the reference. DeployError where what runs is not this layout."""
    name, state_dir = request.deployment.name, request.project.state_dir()
    with writing(state_dir, name, f"deploy rebalance control {name}", message):
        record = record_of_running(request, _runtime(request))
        left = read_campaign(state_dir, name).control
        if left and not left.verified and left.record.digest == record.digest and left.mode == mode:
            campaign, arm = read_campaign(state_dir, name), left
        else:
            bundle = _new_bundle(request, "control")
            arm = _arm("control", request, record, sets, bundle, mode)
            campaign = Campaign(control=arm)
            keep_campaign(state_dir, name, campaign)
        return _ask(request, environ, campaign, arm, control=None, say=say)


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
    """Stop the control, start the candidate, and wait until it answers.

    When it does not come up the control is started again, unless `restore` is off; DeployError in either case.
    """
    deployment, state_dir = request.deployment, request.project.state_dir()
    name = deployment.name
    if request.assessment.refused:
        first = request.assessment.findings[0]
        raise DeployError(f"not booted: {first.gate}: {first.message}", why=first.why, fix=first.fix)
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
        if arm is None or arm.record.digest != deployment.digest or _bundle(request, arm).sealed:
            bundle = _new_bundle(request, "candidate")
            record = record_of(deployment, time.time())
            arm = _arm("candidate", request, record, sets, bundle, control.mode)
        campaign = campaign.with_arm(arm)
        keep_campaign(state_dir, name, campaign)
        return _switch(request, environ, campaign, arm, restore=restore, say=say, on_phase=on_phase)


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
        record_of_running(request, _runtime(request))
        return _ask(request, environ, campaign, arm, control=Path(control.run), say=say)


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
        hidden = secret_values(deployment.secrets)
        comparison, bundle = build_ab(request.project.root, name, Path(control.run), Path(candidate.run), hidden)
        facts = {"DEPLOY_RUN_DIR": str(bundle.folder), "DEPLOY_VERDICT": comparison.verdict}
        hooks.run(request.project, "verdict", hooks.facts_of(deployment) | facts, deployment.secrets)
        if comparison.verdict != "CONTROL_UNHEALTHY":
            add_proven(state_dir, _proven(control))
        if comparison.verdict == "PASS":
            add_proven(state_dir, _proven(candidate))
        audit.note(state_dir, "verdict", name, candidate.record.instance, detail=comparison.verdict)
        return comparison, bundle.folder


_ASK = {"control": "deploy rebalance control", "candidate": "deploy rebalance verify"}


def _proven(arm: Arm) -> ProvenRun:
    return ProvenRun(arm.record, arm.run, arm.overlay, time.time())


def _switch(
    request: Request,
    environ: Mapping[str, str],
    campaign: Campaign,
    arm: Arm,
    *,
    restore: bool,
    say: Say,
    on_phase: OnPhase,
) -> Arm:
    deployment, state_dir, control = request.deployment, request.project.state_dir(), campaign.arm("control")
    runtime, bundle = _runtime(request), _bundle(request, arm)
    try:
        for state in alive_instances(runtime, deployment.name):
            if state.name != deployment.instance_name:
                stop_locked(request.project, runtime, state, control.record, control.record.stop_timeout_s)
                say(f"stopped {state.name} (kept)")
        if not alive_instances(runtime, deployment.name):
            start_locked(request, environ)
            say(f"started {deployment.instance_name}")
        record = record_of_running(request, runtime)
        try:
            wait_for(runtime, record, environ, on_phase)
        finally:
            _describe(request, arm, bundle)
        facts = hooks.facts_of(deployment) | {"DEPLOY_RUN_DIR": str(bundle.folder)}
        hooks.run(request.project, "post-ready", facts, deployment.secrets)
    except DeployError as error:
        bundle.put("refused.json", {"what": error.what, "why": error.why, "fix": error.fix, "exit": error.code})
        bundle.seal()
        keep_campaign(state_dir, deployment.name, Campaign(control))
        audit.note(state_dir, "boot", deployment.name, deployment.instance_name, detail="failed")
        say(f"evidence: {bundle.folder}")
        if restore:
            _restore(request, environ, runtime, control, say, on_phase)
        else:
            say(f"the control {control.record.instance} stays stopped")
        raise
    audit.note(state_dir, "boot", deployment.name, deployment.instance_name, detail=_split(arm.partition))
    say(f"{record.instance} answers")
    return arm


def _restore(
    request: Request, environ: Mapping[str, str], runtime: Runtime, control: Arm, say: Say, on_phase: OnPhase
) -> None:
    record = control.record
    for state in alive_instances(runtime, record.layout):
        if state.name != record.instance:
            runtime.stop(state.name, record.stop_timeout_s)
    say(f"starting the control {record.instance} again")
    start_again(request.project, runtime, record, environ)
    audit.note(request.project.state_dir(), "restore", record.layout, record.instance)
    wait_for(runtime, record, environ, on_phase)
    say(f"{record.instance} answers again")


def _ask(
    request: Request, environ: Mapping[str, str], campaign: Campaign, arm: Arm, *, control: Path | None, say: Say
) -> tuple[Arm, Verified]:
    bundle = _bundle(request, arm)
    if bundle.sealed:
        raise UsageError(f"the {arm.role} was asked already: {bundle.folder}", fix="deploy rebalance verdict")
    _describe(request, arm, bundle)
    if request.deployment.overlay is not None:
        proof = prove_deployment(request)
        put_proof(bundle, proof)
        if proof.failures:
            row = proof.failures[0]
            raise DeployError(f"not proven: {row.rung} {row.subject}: {row.message}", fix=row.fix)
    endpoint = Endpoint(arm.record.base_url, api_key(arm.record, environ))
    verified = verify(
        bundle,
        endpoint,
        arm.record.model,
        request,
        arm.mode,
        control=control,
        fail_fast=False,
        say=say,
    )
    bundle.seal()
    done = replace(arm, verified=True)
    keep_campaign(request.project.state_dir(), request.deployment.name, campaign.with_arm(done))
    return done, verified


def _arm(role: Role, request: Request, record: StartRecord, sets: Sequence[str], bundle: Bundle, mode: Mode) -> Arm:
    overlay = request.deployment.overlay
    return Arm(
        role=role,
        record=record,
        partition=request.assessment.plan.partition,
        sets=tuple(sets),
        run=str(bundle.folder),
        mode=mode,
        overlay=overlay.directory if overlay else None,
    )


def _describe(request: Request, arm: Arm, bundle: Bundle) -> None:
    runtime = _runtime(request)
    put_request(bundle, request, arm.role)
    put_engine(bundle, request.deployment, runtime.engine_identity(request.deployment))
    put_observed(bundle, request, runtime.logs(arm.record.instance))


def _runtime(request: Request) -> Runtime:
    return runtime_of(request.deployment.runtime, request.project.root)


def _bundle(request: Request, arm: Arm) -> Bundle:
    return open_bundle(Path(arm.run), secret_values(request.deployment.secrets))


def _new_bundle(request: Request, role: Role) -> Bundle:
    deployment = request.deployment
    folder = free_folder(request.project.root, deployment.name, role)
    return open_bundle(folder, secret_values(deployment.secrets))


def _split(partition: Sequence[int]) -> str:
    return ",".join(map(str, partition))
