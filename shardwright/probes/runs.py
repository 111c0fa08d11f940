"""Where the trials of a run are kept when nobody names a file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from shardwright.probes.journal import Journal, JournalBusyError, Record


def open_run(folder: Path, name: str, plan_id: str, secrets: Iterable[str] = ()) -> Journal:
    """The newest unfinished run of this plan in `folder`, else a new file `NAME-PLAN-TIME-PID.jsonl` there.

    A finished run is left alone, so that asking again measures again. Raises DeployError as `Journal` does.
    """
    stem = f"{name}-{plan_id[:8]}"
    hidden = tuple(secrets)
    for path in sorted(folder.glob(f"{stem}-*.jsonl"), reverse=True):
        try:
            journal = Journal(path, hidden)
        except JournalBusyError:
            continue
        if not _is_finished(journal.records, plan_id):
            return journal
        journal.close()
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Journal(folder / f"{stem}-{moment}-{os.getpid()}.jsonl", hidden)


def _is_finished(records: Iterable[Record], plan_id: str) -> bool:
    results = [record for record in records if record["kind"] == "result" and record.get("plan") == plan_id]
    if not results:
        return False
    last = results[-1]
    # A run that was decided early has nothing left to ask.
    return bool(last.get("complete", last.get("trials") == last.get("planned")))
