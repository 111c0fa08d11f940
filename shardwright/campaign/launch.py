"""The start and the end of an engine: refused by gates, proven overlay, one writer, hooks, rendered argv, on record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from shardwright.campaign import audit, hooks
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.marks import clear_mark
from shardwright.campaign.overlays import verify_for
from shardwright.campaign.proven import proven_instances
from shardwright.campaign.records import StartRecord, read_record, record_of, write_record
from shardwright.campaign.request import Request, refuse_rejected
from shardwright.connect.locks import hold
from shardwright.connect.project import Project
from shardwright.errors import DeployError
from shardwright.render.command import render
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import EngineState, Runtime

ALIVE = ("created", "running", "restarting")


@contextmanager
def writing(state_dir: Path, layout: str, command: str, message: str = "") -> Iterator[str | None]:
    """Be the only one who changes the deployment of this layout; yields the last one where that one died at it.

    Raises DeployError with the name of the present one.
    """
    with hold(state_dir / "locks" / f"{layout}.lock", command, message) as dead:
        yield dead


def start(request: Request, environ: Mapping[str, str]) -> StartRecord:
    """Start what `deploy cmd` shows. The caller has shown the findings; a refusal ends here."""
    name, state_dir = request.deployment.name, request.project.state_dir()
    with writing(state_dir, name, f"deploy start {name}"):
        record = start_locked(request, environ)
        clear_mark(state_dir, "rollback", name)
        return record


def start_locked(request: Request, environ: Mapping[str, str]) -> StartRecord:
    """As `start`, for callers that hold the lock of the layout already."""
    deployment = request.deployment
    refuse_rejected(request, "not started")
    state_dir = request.project.state_dir()
    runtime = runtime_of(deployment.runtime, request.project.root)
    _refuse_second(runtime, deployment)
    runtime.preflight(deployment)
    if deployment.overlay is not None:
        verify_for(deployment, runtime.engine_identity(deployment))
    hooks.run_for(request.project, "pre-start", deployment)
    secrets = {name: environ[name] for name in deployment.secrets if environ.get(name)}
    runtime.start(deployment, render(deployment), secrets)
    record = write_record(state_dir, deployment, time.time())
    audit.note(state_dir, "start", deployment.name, deployment.instance_name, waived=deployment.waivers)
    runtime.remove_old(deployment.name, deployment.container.keep, proven_instances(state_dir, deployment.name))
    return record


def stop_locked(project: Project, runtime: Runtime, state: EngineState, record: StartRecord, timeout_s: int) -> None:
    """Stop one engine for callers that hold the lock of its layout: hook, end, record."""
    hooks.run_for_started(project, "pre-stop", record, state.name)
    runtime.stop(state.name, timeout_s)
    audit.note(project.state_dir(), "stop", record.layout, state.name)


def newest_instance(runtime: Runtime, layout: str) -> EngineState:
    """The engine of a layout that was started last; DeployError when there is none."""
    instances = runtime.instances(layout)
    if not instances:
        raise DeployError(f"nothing of {layout} runs or ran here", fix=f"deploy start {layout}")
    alive = [state for state in instances if state.status in ALIVE]
    return (alive or list(instances))[0]


def started_record(state_dir: Path, deployment: Deployment, state: EngineState) -> StartRecord:
    """What was noted of a start, or what one that was killed before it was noted would have noted.

    The digest is empty where another deployment of the layout runs.
    """
    noted = read_record(state_dir, deployment.name)
    if noted is not None:
        return noted
    record = record_of(deployment, state.started_at or 0.0)
    return record if record.instance == state.name else replace(record, instance=state.name, digest="")


def _refuse_second(runtime: Runtime, deployment: Deployment) -> None:
    for state in runtime.instances(deployment.name):
        # One that was only ever created is what a start that was cut off leaves; the next start clears it.
        if state.status in ALIVE and state.status != "created":
            raise DeployError(
                f"{deployment.name} already runs as {state.name} ({state.status})",
                why="two engines of one layout would fight for the same cards and port",
                fix=f"deploy status {deployment.name}, or deploy stop {deployment.name}",
            )
