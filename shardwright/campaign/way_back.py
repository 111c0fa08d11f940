"""Where a rollback goes: what was stopped for another deployment, or else the newest accepted instance before it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from shardwright.campaign.engines import runtime_of
from shardwright.campaign.launch import stop_locked
from shardwright.campaign.marks import clear_mark, read_mark, write_mark
from shardwright.campaign.proven import ProvenRun, add_proven, read_proven
from shardwright.campaign.records import StartRecord
from shardwright.connect.project import Project
from shardwright.errors import DeployError
from shardwright.runtime.base import EngineState, Runtime


def make_way(project: Project, runtime: Runtime, state: EngineState, record: StartRecord) -> None:
    """Stop an engine, for another one of its layout. Where it was accepted it is noted first as the way back.

    Raises DeployError where it is not stopped, because a hook says no.
    """
    state_dir = project.state_dir()
    if any(run.record.instance == state.name for run in read_proven(state_dir, record.layout)):
        write_mark(state_dir, "rollback", record.layout, {"target": state.name})
    try:
        stop_locked(project, runtime, state, record, record.stop_timeout_s)
    except DeployError:
        clear_mark(state_dir, "rollback", record.layout)
        raise


def note_accepted(project: Project, record: StartRecord, run: str, overlay: str | None) -> None:
    """From now on a rollback can return to this instance, and no longer to what it took the place of."""
    add_proven(project.state_dir(), ProvenRun(record, run, overlay, time.time()))
    clear_mark(project.state_dir(), "rollback", record.layout)


def noted_way_back(project: Project, layout: str) -> ProvenRun | None:
    """What was stopped for another deployment that is not accepted yet, or what an unfinished rollback goes to."""
    noted = read_mark(project.state_dir(), "rollback", layout).get("target")
    accepted = read_proven(project.state_dir(), layout)
    return _newest_left(project, [run for run in accepted if run.record.instance == noted])


def accepted_before(project: Project, layout: str, current: str) -> ProvenRun | None:
    """The newest instance that was accepted before `current` and still exists; None where there is none.

    A `current` that was never accepted comes after all that were.
    """
    accepted = read_proven(project.state_dir(), layout)
    places = [place for place, run in enumerate(accepted) if run.record.instance == current]
    return _newest_left(project, accepted[: places[0]] if places else accepted)


def _newest_left(project: Project, runs: Sequence[ProvenRun]) -> ProvenRun | None:
    for run in reversed(runs):
        if runtime_of(run.record.runtime, project.root).state(run.record.instance).status != "absent":
            return run
    return None
