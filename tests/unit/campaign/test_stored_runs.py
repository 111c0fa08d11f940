"""Runs that are kept in the repository: every number follows from their trials, and no longer when one is flipped."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.campaign.evidence import SEAL, digest_of, file_hashes
from shardwright.campaign.rebalance.ab import load_arm
from shardwright.campaign.rebalance.comparison import compare_arms
from shardwright.cli.main import run

DATA = Path(__file__).resolve().parents[2] / "data"
RUNS = ("run-up", "run-ab")
SMOKE = {"run-up": "trials/smoke.jsonl", "run-ab": "candidate/trials/smoke.jsonl"}
OF_A_MACHINE = re.compile(r"/(?:home|root|work|Users|opt|usr|var)/")


@pytest.fixture(params=RUNS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a stored run that a test may change."""
    return Path(shutil.copytree(DATA / request.param, tmp_path / request.param))


def verified(folder: Path) -> int:
    return run(["evidence", "verify", str(folder)])


def flip(file: Path) -> None:
    """Turn the verdict of its last passed trial."""
    lines = file.read_text().splitlines()
    place = max(number for number, line in enumerate(lines) if '"class": "PASS"' in line)
    lines[place] = lines[place].replace('"class": "PASS"', '"class": "FAIL"')
    file.write_text("\n".join(lines) + "\n")


def seal_anew(folder: Path) -> None:
    """What a forger would do: a seal over what lies there now."""
    seal: dict[str, Any] = json.loads((folder / SEAL).read_text())
    files = file_hashes(folder)
    (folder / SEAL).write_text(json.dumps(seal | {"files": files, "digest": digest_of(files)}))


def test_a_stored_run_is_intact(stored: Path) -> None:
    assert verified(stored) == 0


def test_one_flipped_trial_is_found_even_under_a_new_seal(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stored / SMOKE[stored.name]
    flip(file)
    assert verified(stored) == 2
    if stored.name == "run-ab":
        seal_anew(file.parents[1])
    seal_anew(stored)
    capsys.readouterr()
    assert verified(stored) == 2
    said = capsys.readouterr().out
    assert "after the seal" not in said
    assert "smoke.failures: the report says" in said


def test_the_comparison_names_its_reason() -> None:
    verdict = json.loads((DATA / "run-ab" / "ab.json").read_text())
    assert verdict["verdict"] == "FAIL"
    assert verdict["reasons"][0].startswith("smoke: completion: the same greedy request twice")


@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_tells_nothing_of_the_machine_that_made_it(name: str) -> None:
    for file in (path for path in (DATA / name).rglob("*") if path.is_file()):
        assert not OF_A_MACHINE.search(file.read_text()), file
    for manifest in (DATA / name).rglob("manifest.json"):
        content = json.loads(manifest.read_text())
        if "user" in content:
            assert (content["user"], content["host"]) == ("operator", "node")


def skipped(reason: str) -> dict[str, Any]:
    return {"probe": "quality", "verdict": "SKIP", "reasons": [reason], "trials": 0, "failures": 0}


@pytest.mark.parametrize(
    ("report", "word", "verdict"),
    [
        (skipped("not applicable: a base model"), "not applicable", None),
        (skipped("not asked: smoke ended as FAIL"), "not asked", "INCONCLUSIVE"),
        ({**skipped(""), "verdict": "PASS"}, "PASS", "PASS"),
    ],
)
def test_both_arms_say_one_word_for_what_a_probe_came_to(
    report: dict[str, Any], word: str, verdict: str | None
) -> None:
    control, candidate = (
        replace(load_arm(DATA / "run-ab" / side), reports=(report,), trials={}) for side in ("control", "candidate")
    )
    (row,) = (row for row in compare_arms(control, candidate).rows if row.group == "probes")
    assert (row.cells, row.verdict) == ((word, word), verdict)
    (alone,) = (row for row in compare_arms(replace(control, reports=()), candidate).rows if row.group == "probes")
    assert alone.cells == ("not asked", word)
