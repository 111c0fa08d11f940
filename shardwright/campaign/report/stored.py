"""A bundle read whole, as the report needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardwright.campaign.evidence import (
    MANIFEST,
    REPORTS,
    SCHEMA,
    SEAL,
    TRIALS,
    VERDICT,
    Bundle,
    digest_of,
    file_hashes,
    read_trials,
)
from shardwright.campaign.rebalance.ab import AB, SIDES, read_side
from shardwright.errors import UsageError

State = Literal["sealed", "altered", "not sealed"]
"""altered: a file is not what was sealed. not sealed: the run did not end."""


@dataclass(frozen=True)
class StoredRun:
    """One bundle: its JSON files, None or empty where the run never came to write them, and trials by probe.

    `arms` holds (side, bundle) of a comparison, in the order control, candidate; empty for a plain run.
    """

    name: str
    state: State
    seal: str
    manifest: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    refused: Mapping[str, Any] | None
    command: Mapping[str, Any] | None
    image: Mapping[str, Any] | None
    gates: Mapping[str, Any] | None
    plan: Mapping[str, Any] | None
    proof: Mapping[str, Any] | None
    reports: Sequence[Mapping[str, Any]]
    trials: Mapping[str, Sequence[dict[str, Any]]]
    arms: tuple[tuple[str, StoredRun], ...] = ()

    @property
    def sides(self) -> tuple[tuple[str, StoredRun], ...]:
        """What each part of the report is made for: both arms, or the run itself without a name."""
        return self.arms or (("", self),)

    def report(self, probe: str) -> Mapping[str, Any] | None:
        """The report of a probe, None where it was not asked."""
        return next((report for report in self.reports if report["probe"] == probe), None)


def load_run(folder: Path) -> StoredRun:
    """Raises UsageError where the folder is no bundle, DeployError where a file of it is damaged."""
    bundle = Bundle(folder)
    manifest = bundle.read(MANIFEST)
    if not isinstance(manifest, Mapping) or manifest.get("schema") != SCHEMA:
        raise UsageError(f"{folder} is no bundle of evidence", fix="name a folder below runs/, as deploy up prints it")
    comparison = bundle.read(AB)
    seal = bundle.read(SEAL) or {}
    return StoredRun(
        name=bundle.folder.resolve().name,
        state=_state(folder, seal),
        seal=str(seal.get("digest", "")),
        manifest=manifest,
        verdict=comparison or bundle.read(VERDICT),
        refused=bundle.read("refused.json"),
        command=bundle.read("command.json"),
        image=bundle.read("image.json"),
        gates=bundle.read("gates.json"),
        plan=bundle.read("plan.json"),
        proof=bundle.read("proof.json"),
        reports=bundle.read(REPORTS) or [],
        trials={file.stem: read_trials(bundle, file.stem) for file in sorted((folder / TRIALS).glob("*.jsonl"))},
        arms=tuple((side, load_run(read_side(folder, side))) for side in SIDES) if comparison else (),
    )


def _state(folder: Path, seal: Mapping[str, Any]) -> State:
    if not seal:
        return "not sealed"
    return "sealed" if digest_of(file_hashes(folder)) == seal.get("digest") else "altered"
