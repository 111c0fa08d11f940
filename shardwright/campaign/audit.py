"""Who started, stopped, returned or waived what, and when: one JSON line each, only ever appended."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardwright.connect.locks import performer
from shardwright.errors import DeployError

FILE = "audit.jsonl"
_FIELDS = {"at", "user", "host", "verb", "layout", "instance", "waived", "detail"}


def note(
    state_dir: Path, verb: str, layout: str, instance: str, *, waived: Sequence[str] = (), detail: str = ""
) -> None:
    """Append one line. Values of variables and overrides are not part of it, so no secret can be."""
    user, host = performer()
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "user": user,
        "host": host,
        "verb": verb,
        "layout": layout,
        "instance": instance,
        "waived": list(waived),
        "detail": detail,
    }
    path = state_dir / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, json.dumps(line).encode("ascii") + b"\n")
        finally:
            os.close(handle)
    except OSError as error:
        raise DeployError(
            f"{path} cannot be written: {error.strerror}",
            why="what is done to a deployment has to be on record",
            fix="free some space, or make the folder writable, and run again",
        ) from None


def entries(state_dir: Path, layout: str | None = None) -> list[dict[str, Any]]:
    """All lines, or those of one layout, oldest first. A line that is torn, or no entry of ours, is passed over."""
    try:
        lines = (state_dir / FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and entry.keys() >= _FIELDS and layout in (None, entry["layout"]):
            found.append(entry)
    return found
