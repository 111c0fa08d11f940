"""The bundle of a comparison: both arms whole, and the verdict that follows from them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from shardwright import __version__
from shardwright.campaign.evidence import (
    MANIFEST,
    REPORTS,
    SCHEMA,
    TRIALS,
    Bundle,
    read_json,
    read_trials,
)
from shardwright.campaign.rebalance.comparison import ArmEvidence, Comparison, compare_arms
from shardwright.errors import DeployError, ExitCode

ARM = "ab"
AB = "ab.json"
SIDES = ("control", "candidate")


def load_arm(folder: Path) -> ArmEvidence:
    """One sealed bundle for comparison. DeployError (inconclusive) where its run did not end."""
    bundle = Bundle(folder)
    if not bundle.sealed:
        raise DeployError(
            f"{folder} is not sealed: its run did not end",
            why="half an arm decides nothing",
            fix="deploy rebalance control, or deploy rebalance verify",
            code=ExitCode.INCONCLUSIVE,
        )
    files = sorted((folder / TRIALS).glob("*.jsonl"))
    return ArmEvidence(
        manifest=bundle.read(MANIFEST) or {},
        image=bundle.read("image.json") or {},
        plan=bundle.read("plan.json") or {},
        reports=bundle.read(REPORTS) or [],
        trials={file.stem: read_trials(bundle, file.stem) for file in files},
    )


def build_ab(bundle: Bundle, layout: str, control: Path, candidate: Path) -> Comparison:
    """Compare two sealed bundles, and keep the verdict with copies of both in a bundle of its own.

    UsageError where they do not compare; nothing is written then.
    """
    comparison = compare_arms(load_arm(control), load_arm(candidate))
    for side, folder in zip(SIDES, (control, candidate), strict=True):
        try:
            shutil.copytree(folder, bundle.folder / side, dirs_exist_ok=True)
        except OSError as error:
            raise DeployError(f"{folder} cannot be copied: {error}", fix="free some space and run it again") from None
    bundle.put(
        MANIFEST,
        {
            "schema": SCHEMA,
            "tool_version": __version__,
            "layout": layout,
            "arm": ARM,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "control": control.name,
            "candidate": candidate.name,
        },
    )
    bundle.put(AB, comparison.as_data())
    bundle.seal()
    return comparison


def again(folder: Path) -> dict[str, object]:
    """The comparison of an ab bundle, made again from its two arms."""
    control, candidate = (read_side(folder, side) for side in SIDES)
    return compare_arms(load_arm(control), load_arm(candidate)).as_data()


def read_side(folder: Path, side: str) -> Path:
    """Where the copy of one arm lies. DeployError where it is not there."""
    path = folder / side
    if read_json(path / MANIFEST) is None:
        raise DeployError(f"{path} holds no arm", why="the comparison cannot be made again without it")
    return path
