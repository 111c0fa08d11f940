"""Climbing the ladder of proof for odd tensor parallelism: what is kept of a try, and what may be tried next."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError
from shardwright.facts.vtp_ladder import Evidence, Standing, read_evidence


def keep(file: Path, evidence: Evidence) -> None:
    """Store what came of a rung, in place of what was known of it."""
    others = [old for old in read_evidence(file) if old.rung != evidence.rung]
    write_file(file, msgspec.json.format(msgspec.json.encode([*others, evidence])) + b"\n")


def require_below(standings: tuple[Standing, ...], name: str) -> None:
    """DeployError when a rung below `name` is not green."""
    for standing in standings:
        if standing.rung.name == name:
            return
        if standing.state != "green":
            raise DeployError(
                f"the rung {name} may not be tried: {standing.rung.name} is {standing.state}",
                why=f"not shown yet: {standing.rung.claim}; what stands on it would mean nothing",
                fix="deploy vtp qualify LAYOUT shows the ladder and tries the rungs that need no server",
            )
