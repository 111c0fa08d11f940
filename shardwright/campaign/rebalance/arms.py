"""What is on file of a rebalance: its two arms, each as far as it got."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from shardwright.campaign.marks import read_mark, write_mark
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.records import StartRecord
from shardwright.errors import UsageError

Role = Literal["control", "candidate"]


class Arm(Struct, frozen=True):
    """One arm. `sets` are the overrides that made it, `mode` is what its probes ask, `run` the folder of its bundle."""

    role: Role
    record: StartRecord
    partition: tuple[int, ...]
    sets: tuple[str, ...]
    run: str
    mode: Mode
    overlay: str | None = None
    """The folder of the overlay that it mounts."""
    verified: bool = False


class Campaign(Struct, frozen=True):
    """What is on file of a layout's rebalance; `ab` is the folder of the last comparison."""

    control: Arm | None = None
    candidate: Arm | None = None
    ab: str | None = None

    def arm(self, role: Role) -> Arm:
        """UsageError with the next command where the arm is not there."""
        found = self.control if role == "control" else self.candidate
        if found is None:
            raise UsageError(
                f"there is no {role} yet",
                fix="deploy rebalance control" if role == "control" else "deploy rebalance boot SPLIT",
            )
        return found

    def with_arm(self, arm: Arm) -> Campaign:
        """A new control begins a new campaign; a candidate takes the place of the one before."""
        return Campaign(self.control, arm) if arm.role == "candidate" else Campaign(arm, self.candidate)


def read_campaign(state_dir: Path, layout: str) -> Campaign:
    """The campaign of a layout; an empty one where none is under way, or where the note is not one of ours."""
    try:
        return msgspec.convert(read_mark(state_dir, "rebalance", layout), Campaign)
    except msgspec.ValidationError:
        return Campaign()


def keep_campaign(state_dir: Path, layout: str, campaign: Campaign) -> None:
    """Write it down in one step."""
    write_mark(state_dir, "rebalance", layout, msgspec.to_builtins(campaign))
