"""A local engine as it runs, and the one that a deployment would start now, in the same plain form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.connect.processes import environment_of
from shardwright.connect.trees import VERSION_FILE, InstalledTree
from shardwright.errors import DeployError
from shardwright.runtime.description import Description, FileState, value_digest
from shardwright.runtime.file_states import file_state
from shardwright.runtime.local_preflight import interpreter
from shardwright.runtime.local_record import Record

if TYPE_CHECKING:
    from shardwright.render.command import RenderedCommand
    from shardwright.resolve.deployment import Deployment


def wanted_process(deployment: Deployment, command: RenderedCommand) -> Description:
    """What `start` would execute now. One file of the package stands for all: each installation writes it anew."""
    version = Path(InstalledTree(interpreter(deployment)).root) / VERSION_FILE
    return Description(
        argv=command.argv,
        env={name: value_digest(value) for name, value in command.env},
        files={str(version): FileState(*file_state(str(version)))},
    )


def running_process(record: Record, started_at: float, wanted: Description, unrendered: Collection[str]) -> Description:
    """What the record says was started, with the environment that the process was really given.

    `unrendered`: variables that reach an engine from elsewhere than its layout: this host's own, and secrets.
    """
    started = record.started()
    if started is None:
        raise DeployError(f"the record {record.folder} cannot be read", fix="deploy stop, then deploy start")
    env = _environment(record) or dict(started.env or ())
    return Description(
        argv=started.argv,
        env={name: value_digest(value) for name, value in env.items() if name in wanted.env or name not in unrendered},
        files={path: FileState(*file_state(path)) for path in wanted.files},
        started_at=started_at,
    )


def _environment(record: Record) -> Mapping[str, str] | None:
    # An engine that gives itself a title writes over its own; the supervisor was started with the same one.
    supervisor = record.supervisor()
    return environment_of(supervisor) if supervisor is not None else None
