"""Back to the accepted deployment before this one: its stopped instance is started again, exactly as it was."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from shardwright.campaign import audit
from shardwright.campaign.engine_steps import OnPhase, Say, alive_instances, start_again, wait_for
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.launch import stop_locked, writing
from shardwright.campaign.marks import clear_mark, write_mark
from shardwright.campaign.proven import ProvenRun
from shardwright.campaign.records import StartRecord, read_record
from shardwright.campaign.way_back import accepted_before, noted_way_back
from shardwright.connect.project import Project
from shardwright.connect.trees import PACKAGE
from shardwright.errors import DeployError
from shardwright.overlay.lock import read_lock
from shardwright.runtime.wait import ignore_event


def rollback(
    project: Project,
    layout: str,
    environ: Mapping[str, str],
    *,
    message: str = "",
    say: Say = lambda _: None,
    on_phase: OnPhase = ignore_event,
) -> StartRecord:
    """Stop what runs of the layout and start the newest accepted instance before it; returns when it answers.

    Safe to kill at any point: the next call goes on to the same instance. Raises DeployError where there is none to
    go back to, where its files changed since, or where it does not come up.
    """
    state_dir = project.state_dir()
    with writing(state_dir, layout, f"deploy rollback {layout}", message) as dead:
        if dead:
            say(f"taking up what was left by {dead}")
        return rollback_locked(project, _target(project, layout), environ, say=say, on_phase=on_phase)


def rollback_locked(
    project: Project,
    target: ProvenRun,
    environ: Mapping[str, str],
    *,
    say: Say = lambda _: None,
    on_phase: OnPhase = ignore_event,
) -> StartRecord:
    """As `rollback`, to a given instance, for callers that hold the lock of its layout already."""
    record, state_dir = target.record, project.state_dir()
    layout = record.layout
    runtime = runtime_of(record.runtime, project.root)
    _refuse_changed_overlay(target)
    write_mark(state_dir, "rollback", layout, {"target": record.instance})
    for state in alive_instances(runtime, layout):
        if state.name != record.instance:
            stop_locked(project, runtime, state, read_record(state_dir, layout) or record, record.stop_timeout_s)
            say(f"stopped {state.name}")
    record = replace(record, started_at=time.time())
    start_again(project, runtime, record, environ)
    audit.note(state_dir, "rollback", layout, record.instance)
    say(f"started {record.instance} again")
    wait_for(runtime, record, environ, on_phase)
    clear_mark(state_dir, "rollback", layout)
    clear_mark(state_dir, "up", layout)
    return record


def _target(project: Project, layout: str) -> ProvenRun:
    last = read_record(project.state_dir(), layout)
    if last is None:
        raise DeployError(f"nothing of {layout} was started from this project", fix=f"deploy up {layout}")
    found = noted_way_back(project, layout) or accepted_before(project, layout, last.instance)
    if found is None:
        raise DeployError(
            f"there is no accepted deployment of {layout} to go back to",
            why="only an instance that `deploy up` or `deploy rebalance` accepted, and that still exists, can be one",
            fix=f"deploy up {layout}",
        )
    return found


def _refuse_changed_overlay(run: ProvenRun) -> None:
    """Its files are mounted from this host, so what stands there now is what would run."""
    if run.overlay is None:
        return
    lock = read_lock(Path(run.overlay))
    changed = [
        relative
        for relative, wanted in (lock.results() if lock else {}).items()
        if _sha256(Path(run.overlay) / PACKAGE / relative) != wanted
    ]
    if lock is None or changed:
        raise DeployError(
            f"the overlay of {run.record.instance} is not what it was: {changed[0] if changed else 'its lock is gone'}",
            why="the instance that was accepted ran other files than would run now",
            fix=f"deploy patch build {run.record.layout}, then deploy up {run.record.layout}",
        )


def _sha256(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
