"""Records of a run as they lie on file, read without the lock of a writer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.journal import Journal, Record
from shardwright.probes.pool import finished_trials
from shardwright.probes.report import ProbeReport


class NoPlanError(DeployError):
    """Trials without the plan that they belong to: what was to be asked is not known."""

    def __init__(self, probe: str, plan_id: str) -> None:
        super().__init__(
            f"no plan of {probe} is on file" + (f" with the id {plan_id}" if plan_id else ""),
            why="what was to be asked is not known, so nobody can say whether anything is missing",
            fix="ask again: deploy verify LAYOUT fills a new bundle",
            code=ExitCode.INCONCLUSIVE,
        )


def read_records(path: Path) -> list[Record]:
    """All whole records of a file of trials; a torn last line, left by a killed writer, is passed over.

    Raises DeployError (exit 64) where the file is not to be read or holds anything else.
    """
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DeployError(f"cannot read {path}: {error.strerror or error}", code=ExitCode.USAGE) from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not (isinstance(record, dict) and isinstance(record.get("kind"), str)):
            raise DeployError(
                f"{path}:{number}: not a record of trials",
                why="the file was not written by a probe, or was damaged",
                code=ExitCode.USAGE,
            )
        records.append(record)
    return records


def plan_record(records: Iterable[Record], plan_id: str | None = None) -> Record | None:
    """The last plan on file, or the last one of this id."""
    found = None
    for record in records:
        if record["kind"] == "plan" and plan_id in (None, record.get("plan")):
            found = record
    return found


def plan_on_file(records: Iterable[Record], plan_id: str, probe: str) -> Record:
    """The plan of this id, without which no report is made. Raises NoPlanError (exit 3) where it is not there."""
    found = plan_record(records, plan_id)
    if found is None:
        raise NoPlanError(probe, plan_id)
    return found


def write_result(journal: Journal, report: ProbeReport, planned: int) -> None:
    """Close a run, unless it was whole before; a later run of a plan that is whole begins anew."""
    closed = any(record["kind"] == "result" and record.get("plan") == report.plan for record in journal.records)
    if closed and len(finished_trials(journal.records, report.plan)) >= planned:
        return
    content = {**report.to_json(), "plan": report.plan, "planned": planned}
    journal.append("result", content)
