"""The start of an engine: refused by gates, proven overlay, one writer, rendered argv."""

from __future__ import annotations

import time
from collections.abc import Mapping

from shardwright.campaign.engines import engine_identity, runtime_of
from shardwright.campaign.overlays import verify_for
from shardwright.campaign.records import StartRecord, write_record
from shardwright.campaign.request import Request
from shardwright.connect.locks import hold
from shardwright.errors import DeployError
from shardwright.render.command import render
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import EngineState, Runtime

ALIVE = ("created", "running", "restarting")


def start(request: Request, environ: Mapping[str, str]) -> StartRecord:
    """Start what `deploy cmd` shows. The caller has shown the findings; a refusal ends here."""
    deployment = request.deployment
    if request.assessment.refused:
        first = request.assessment.findings[0]
        raise DeployError(f"not started: {first.gate} refuses", fix=f"deploy check {deployment.name}")
    state_dir = request.project.state_dir()
    runtime = runtime_of(deployment.runtime, request.project.root)
    with hold(state_dir / "locks" / f"{deployment.name}.lock", f"deploy start {deployment.name}"):
        _refuse_second(runtime, deployment)
        runtime.preflight(deployment)
        if deployment.overlay is not None:
            verify_for(deployment, engine_identity(deployment))
        secrets = {name: environ[name] for name in deployment.secrets if environ.get(name)}
        runtime.start(deployment, render(deployment), secrets)
        record = write_record(state_dir, deployment, time.time())
        runtime.remove_old(deployment.name, deployment.container.keep)
    return record


def newest_instance(runtime: Runtime, layout: str) -> EngineState:
    """The engine of a layout that was started last; DeployError when there is none."""
    instances = runtime.instances(layout)
    if not instances:
        raise DeployError(f"nothing of {layout} runs or ran here", fix=f"deploy start {layout}")
    alive = [state for state in instances if state.status in ALIVE]
    return (alive or list(instances))[0]


def _refuse_second(runtime: Runtime, deployment: Deployment) -> None:
    for state in runtime.instances(deployment.name):
        # One that was only ever created is what a start that was cut off leaves; the next start clears it.
        if state.status in ALIVE and state.status != "created":
            raise DeployError(
                f"{deployment.name} already runs as {state.name} ({state.status})",
                why="two engines of one layout would fight for the same cards and port",
                fix=f"deploy status {deployment.name}, or deploy stop {deployment.name}",
            )
