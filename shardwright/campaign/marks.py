"""What is under way with a layout: one small file per verb, so that a run which was killed can be taken up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError

Verb = Literal["up", "rollback", "rebalance", "boots", "ablate"]


def read_mark(state_dir: Path, verb: Verb, layout: str) -> dict[str, Any]:
    """What was noted last; empty where nothing is under way, or where what is there is no note of ours."""
    try:
        content = json.loads(_file(state_dir, verb, layout).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_mark(state_dir: Path, verb: Verb, layout: str, content: dict[str, Any]) -> None:
    """Note a boundary that was reached, in one step. Raises DeployError when the disk takes nothing."""
    file = _file(state_dir, verb, layout)
    try:
        write_file(file, json.dumps(content, indent=1).encode() + b"\n")
    except OSError as error:
        raise DeployError(
            f"{file} cannot be written: {error.strerror}",
            why="without it a run that is cut off here could not be taken up",
            fix="free some space and run the same command again",
        ) from None


def clear_mark(state_dir: Path, verb: Verb, layout: str) -> None:
    """Nothing is under way any more."""
    _file(state_dir, verb, layout).unlink(missing_ok=True)


def _file(state_dir: Path, verb: Verb, layout: str) -> Path:
    return state_dir / verb / f"{layout}.json"
