"""Which instances of a layout were accepted: what `deploy rollback` can return to."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from shardwright.campaign.records import StartRecord
from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError

_KEPT = 10


class ProvenRun(Struct, frozen=True):
    """One accepted instance with the evidence of it. `at` is in unix seconds, `run` the folder of its bundle."""

    record: StartRecord
    run: str
    overlay: str | None
    """The folder of the overlay that it mounts, None without patches."""
    at: float


def read_proven(state_dir: Path, layout: str) -> tuple[ProvenRun, ...]:
    """Accepted instances of a layout, oldest first."""
    try:
        return msgspec.json.decode(_file(state_dir, layout).read_bytes(), type=tuple[ProvenRun, ...])
    except FileNotFoundError:
        return ()
    except (msgspec.DecodeError, OSError) as error:
        raise DeployError(
            f"the list of accepted runs of {layout} cannot be read: {error}",
            fix=f"remove {_file(state_dir, layout)}; runs/ keeps the evidence",
        ) from None


def add_proven(state_dir: Path, run: ProvenRun) -> None:
    """Note an accepted instance; it counts as the newest, however often it was accepted before."""
    layout = run.record.layout
    others = tuple(old for old in read_proven(state_dir, layout) if old.record.instance != run.record.instance)
    kept = (*others, run)[-_KEPT:]
    write_file(_file(state_dir, layout), msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def proven_instances(state_dir: Path, layout: str) -> frozenset[str]:
    """The two newest accepted instances, which no cleaning up may remove: one may run, the other is the way back."""
    return frozenset(run.record.instance for run in read_proven(state_dir, layout)[-2:])


def _file(state_dir: Path, layout: str) -> Path:
    return state_dir / "proven" / f"{layout}.json"
