"""The running engine of a layout against the one that would be started now."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from shardwright.campaign.engines import runtime_of
from shardwright.campaign.launch import newest_instance
from shardwright.campaign.overlays import verify_for
from shardwright.campaign.records import StartRecord, read_record
from shardwright.campaign.request import Request
from shardwright.errors import DeployError
from shardwright.render.command import render
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import Runtime
from shardwright.runtime.differences import Difference, differences


class Drift(Struct, frozen=True):
    """What differs between the running `instance` and what `deploy start` would bring up; empty: nothing does."""

    layout: str
    instance: str
    differences: tuple[Difference, ...]


def find_drift(request: Request) -> Drift:
    """Compare the newest running engine of the layout. Changes nothing; DeployError when nothing of it runs."""
    deployment = request.deployment
    record = read_record(request.project.state_dir(), deployment.name)
    kind = record.runtime if record is not None else deployment.runtime
    runtime = runtime_of(kind, request.project.root)
    state = newest_instance(runtime, deployment.name)
    if state.status != "running":
        raise DeployError(
            f"nothing of {deployment.name} runs ({state.name} is {state.status})", fix=f"deploy start {deployment.name}"
        )
    if kind != deployment.runtime:
        fix = f"deploy stop {deployment.name}, then deploy start {deployment.name}"
        return Drift(deployment.name, state.name, (Difference("runtime", kind, deployment.runtime, fix),))
    started = record if record is not None and record.instance == state.name else None
    wanted = runtime.expect(deployment, render(deployment))
    running = runtime.describe(state.name, wanted, (*deployment.secrets, *(started.secrets if started else ())))
    found = (
        *differences(running, wanted, deployment.name),
        *_overlay(runtime, deployment),
        *_secrets(started, deployment),
    )
    return Drift(deployment.name, state.name, found)


def _overlay(runtime: Runtime, deployment: Deployment) -> Iterator[Difference]:
    """Whether the overlay on this host is still the one that its lock, the patches and the engine say."""
    try:
        identity = runtime.engine_identity(deployment)
    except DeployError:
        # That the image is gone is a difference of its own.
        identity = None
    try:
        verify_for(deployment, identity)
    except DeployError as error:
        yield Difference("overlay", "as its lock said at the start", error.what, error.fix, error.why)


def _secrets(started: StartRecord | None, deployment: Deployment) -> Iterator[Difference]:
    """Names alone; values are never looked at."""
    if started is not None and set(started.secrets) != set(deployment.secrets):
        names = [", ".join(sorted(secrets)) or "none" for secrets in (started.secrets, deployment.secrets)]
        fix = f"deploy stop {deployment.name}, then deploy start {deployment.name}"
        yield Difference("secrets", names[0], names[1], fix)
