"""Check a bundle without the server: hashes, then every number in its reports again from the stored trials."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwright.campaign.boots import ARM as BOOTS
from shardwright.campaign.boots import boots_again
from shardwright.campaign.evidence import (
    MANIFEST,
    REPORTS,
    SCHEMA,
    SEAL,
    VERDICT,
    Bundle,
    digest_of,
    file_hashes,
    open_bundle,
    read_trials,
)
from shardwright.campaign.overall import overall_of
from shardwright.campaign.probe_table import PROBES
from shardwright.campaign.rebalance.ab import AB, ARM, SIDES, again, read_side
from shardwright.errors import DeployError, ExitCode, UsageError

_RELATIVE = 1e-9


def verify_bundle(folder: Path) -> list[str]:
    """Every difference between what the bundle says and what its trials give, one line each; empty when there is none.

    Raises UsageError where the folder is no bundle, DeployError (inconclusive) where it was never sealed.
    """
    bundle = open_bundle(folder)
    manifest = bundle.read(MANIFEST)
    if not isinstance(manifest, Mapping) or manifest.get("schema") != SCHEMA:
        raise UsageError(f"{folder} is no evidence bundle", fix="name a folder below runs/")
    if not bundle.sealed:
        raise DeployError(
            f"{folder} is not sealed: its run did not end",
            why="the trials of an unfinished run decide nothing",
            fix="run the same command again; it goes on where it stopped",
            code=ExitCode.INCONCLUSIVE,
        )
    found = [*_hash_differences(bundle), *_report_differences(bundle), *_verdict_differences(bundle)]
    return [*found, *_ab_differences(bundle)] if manifest.get("arm") == ARM else found


def _hash_differences(bundle: Bundle) -> Iterator[str]:
    seal = bundle.read(SEAL)
    sealed: Mapping[str, str] = seal.get("files", {}) if isinstance(seal, Mapping) else {}
    present = file_hashes(bundle.folder)
    for name in sorted(sealed.keys() | present.keys()):
        if name not in present:
            yield f"{name}: missing"
        elif name not in sealed:
            yield f"{name}: was added after the seal"
        elif sealed[name] != present[name]:
            yield f"{name}: changed after the seal"
    if digest_of(sealed) != seal.get("digest"):
        yield f"{SEAL}: the hash over all does not belong to the hashes in it"


def _report_differences(bundle: Bundle) -> Iterator[str]:
    reports = bundle.read(REPORTS) or []
    for stored in reports:
        name = stored.get("probe", "?")
        if not stored.get("plan") and stored.get("verdict") not in ("PASS", "FAIL"):
            # It ended before any trial, so there is nothing that could be computed again.
            continue
        probe = PROBES.get(name)
        if probe is None and name != BOOTS:
            yield f"{REPORTS}: no probe is called {name!r}"
            continue
        try:
            trials = [] if probe is None else read_trials(bundle, name)
            report = boots_again(bundle) if probe is None else probe.recompute(trials, stored.get("plan", ""))
            again = report.to_json()
        except (DeployError, KeyError, TypeError, ValueError) as error:
            yield f"{name}: its trials cannot be judged again ({type(error).__name__}: {error})"
            continue
        # Through JSON, so that both sides went the same way.
        yield from _differences(name, stored, json.loads(json.dumps(again)))


def _verdict_differences(bundle: Bundle) -> Iterator[str]:
    stored = bundle.read(VERDICT)
    if not isinstance(stored, Mapping):
        return
    again = overall_of(bundle.read(REPORTS) or [])
    for key, value in again.items():
        yield from _differences(f"{VERDICT} {key}", stored.get(key), json.loads(json.dumps(value)))


def _ab_differences(bundle: Bundle) -> Iterator[str]:
    for side in SIDES:
        for line in verify_bundle(read_side(bundle.folder, side)):
            yield f"{side}: {line}"
    yield from _differences(AB, bundle.read(AB), json.loads(json.dumps(again(bundle.folder))))


def _differences(where: str, stored: Any, again: Any) -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(again, Mapping):
        for key in sorted(stored.keys() | again.keys()):
            if key == "file":
                continue
            yield from _differences(f"{where}.{key}", stored.get(key), again.get(key))
    elif isinstance(stored, list) and isinstance(again, list) and len(stored) == len(again):
        for index, (left, right) in enumerate(zip(stored, again, strict=True)):
            yield from _differences(f"{where}[{index}]", left, right)
    elif not _same(stored, again):
        yield f"{where}: the report says {_short(stored)}, the trials give {_short(again)}"


def _same(stored: Any, again: Any) -> bool:
    numbers = (int, float)
    if isinstance(stored, numbers) and isinstance(again, numbers) and not isinstance(stored, bool):
        return math.isclose(stored, again, rel_tol=_RELATIVE, abs_tol=1e-12)
    return bool(stored == again)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
