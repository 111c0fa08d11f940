"""What was started: one small file per instance, so that later verbs find the server with the settings it got."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError
from shardwright.resolve.deployment import Deployment


class StartRecord(Struct, frozen=True):
    """Address, model and limits of one started instance; names of secrets, never values."""

    instance: str
    layout: str
    runtime: str
    base_url: str
    model: str
    digest: str
    secrets: tuple[str, ...]
    wait_timeout_s: int
    stop_timeout_s: int
    started_at: float
    """Unix seconds."""


def record_of(deployment: Deployment, started_at: float) -> StartRecord:
    """What is noted of a deployment that is started at this time, in unix seconds."""
    return StartRecord(
        instance=deployment.instance_name,
        layout=deployment.name,
        runtime=deployment.runtime,
        base_url=deployment.base_url,
        model=deployment.served_model_name,
        digest=deployment.digest,
        secrets=deployment.secrets,
        wait_timeout_s=deployment.wait_timeout_s,
        stop_timeout_s=deployment.container.stop_timeout_s,
        started_at=started_at,
    )


def write_record(state_dir: Path, deployment: Deployment, started_at: float) -> StartRecord:
    """Note the start of a deployment."""
    record = record_of(deployment, started_at)
    keep_record(state_dir, record)
    return record


def keep_record(state_dir: Path, record: StartRecord) -> None:
    """Note what was last started of its layout."""
    write_file(_file(state_dir, record.layout), msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def read_record(state_dir: Path, layout: str) -> StartRecord | None:
    """What was last started for a layout; None when nothing was."""
    file = _file(state_dir, layout)
    try:
        return msgspec.json.decode(file.read_bytes(), type=StartRecord)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        fix = f"rm {file}; what runs is found without it: deploy stop {layout}"
        raise DeployError(f"the record of {layout} cannot be read: {error}", fix=fix) from None


def list_records(state_dir: Path) -> tuple[StartRecord, ...]:
    """The last start of every layout, by layout name."""
    names = sorted(file.stem for file in (state_dir / "started").glob("*.json"))
    records = (read_record(state_dir, name) for name in names)
    return tuple(record for record in records if record is not None)


def _file(state_dir: Path, layout: str) -> Path:
    return state_dir / "started" / f"{layout}.json"
