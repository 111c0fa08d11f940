"""Steps that several campaigns share: the record of what runs, wait for it, prove it, start a kept instance again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from shardwright.campaign import audit, hooks
from shardwright.campaign.bundle_contents import put_engine, put_observed, put_proof
from shardwright.campaign.evidence import Bundle
from shardwright.campaign.launch import ALIVE
from shardwright.campaign.proof import prove_deployment
from shardwright.campaign.records import StartRecord, keep_record, read_record, write_record
from shardwright.campaign.request import Request
from shardwright.connect.project import Project
from shardwright.errors import DeployError
from shardwright.overlay.prove import Proof
from shardwright.runtime.base import EngineState, Runtime
from shardwright.runtime.wait import PhaseEvent, Ready, ignore_event, wait_ready

Say = Callable[[str], None]
OnPhase = Callable[[PhaseEvent], None]


def api_key(record: StartRecord, environ: Mapping[str, str]) -> str | None:
    """The server's key, where the layout names it among its secrets."""
    return environ.get("VLLM_API_KEY") or None if "VLLM_API_KEY" in record.secrets else None


def wait_for(
    runtime: Runtime, record: StartRecord, environ: Mapping[str, str], on_phase: OnPhase = ignore_event
) -> Ready:
    """Wait until the instance of a record answers. Raises as `wait_ready` does."""
    return wait_ready(
        runtime,
        record.instance,
        base_url=record.base_url,
        model=record.model,
        timeout_s=record.wait_timeout_s,
        on_event=on_phase,
        api_key=api_key(record, environ),
    )


def wait_for_candidate(
    request: Request,
    runtime: Runtime,
    record: StartRecord,
    bundle: Bundle,
    environ: Mapping[str, str],
    on_phase: OnPhase,
) -> Ready:
    """As `wait_for`, with engine and log kept as evidence however it ends, and the post-ready hook."""
    put_engine(bundle, request.deployment, runtime.engine_identity(request.deployment))
    try:
        ready = wait_for(runtime, record, environ, on_phase)
    finally:
        put_observed(bundle, request, runtime.logs(record.instance))
    hooks.run_for(request.project, "post-ready", request.deployment, run=bundle.folder)
    return ready


def prove_running(request: Request, bundle: Bundle) -> Proof | None:
    """Prove the patches of what runs, and keep that; None without patches. DeployError where a rung fails."""
    proof = prove_deployment(request) if request.deployment.overlay else None
    put_proof(bundle, proof)
    if proof and proof.failures:
        row = proof.failures[0]
        raise DeployError(
            f"not proven: {row.rung} {row.subject}: {row.message}",
            why="the engine answers, but not through its patches",
            fix=row.fix or f"deploy patch prove {request.deployment.name}",
        )
    return proof


def alive_instances(runtime: Runtime, layout: str) -> list[EngineState]:
    """Instances of a layout that run, or are about to."""
    states = runtime.instances(layout)
    return [state for state in states if state.status in ALIVE and state.status != "created"]


def record_of_running(request: Request, runtime: Runtime) -> StartRecord:
    """The record of the running instance of exactly this deployment. DeployError where something else runs.

    A start that was killed before it was noted is noted now, so that the record names what runs.
    """
    deployment, state_dir = request.deployment, request.project.state_dir()
    state = runtime.state(deployment.instance_name)
    if state.status not in ALIVE:
        others = alive_instances(runtime, deployment.name)
        raise DeployError(
            f"{deployment.instance_name} does not run" + (f", {others[0].name} does" if others else ""),
            why="what is asked must be what the layout with these overrides says",
            fix=f"deploy drift {deployment.name}" if others else f"deploy up {deployment.name}",
        )
    record = read_record(state_dir, deployment.name)
    if record is not None and record.instance == state.name:
        return record
    return write_record(state_dir, deployment, state.started_at or time.time())


def start_again(project: Project, runtime: Runtime, record: StartRecord, environ: Mapping[str, str]) -> None:
    """Start a stopped instance as it was; nothing happens where it runs already. Its record becomes the current one."""
    if runtime.state(record.instance).status not in ALIVE:
        hooks.run_for_started(project, "pre-start", record, record.instance)
        runtime.resume(record.instance, {name: environ[name] for name in record.secrets if environ.get(name)})
    keep_record(project.state_dir(), record)


def bring_back(
    project: Project,
    runtime: Runtime,
    record: StartRecord,
    environ: Mapping[str, str],
    *,
    deed: str,
    say: Say,
    on_phase: OnPhase,
) -> None:
    """Let a kept instance run in place of what was tried, and wait until it answers; `deed` is its word in the audit.

    No hook can keep what was tried running.
    """
    for state in alive_instances(runtime, record.layout):
        if state.name != record.instance:
            runtime.stop(state.name, record.stop_timeout_s)
    if runtime.state(record.instance).status not in ALIVE:
        say(f"starting {record.instance} again")
    start_again(project, runtime, record, environ)
    audit.note(project.state_dir(), deed, record.layout, record.instance)
    wait_for(runtime, record, environ, on_phase)
    say(f"{record.instance} answers again")
