"""More than 400 damaged files: no edit lands in another function, breaks a file, is doubled or vanishes unsaid.

`scripts/patch_mutation_bank.py` prints the table beside `git apply`, `patch` and an unchecked replacement, and carries
edits over the real differences between engine releases.
"""

from __future__ import annotations

import random
import sys
import sysconfig
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

import patch_mutation_bank as bank

EXPECTED = {
    "anchor deleted": {"ANCHOR_GONE"},
    "anchor duplicated": {"ANCHOR_AMBIGUOUS"},
    "symbol renamed": {"SYMBOL_GONE"},
    "moved to another file": {"FILE_GONE"},
    "applied before": {"OBSOLETE"},
    "twin": {"ANCHOR_GONE"},
}
PER_FILE = 6


@pytest.fixture(scope="module")
def insertions() -> list[bank.Insertion]:
    draw, library = random.Random(7), Path(sysconfig.get_path("stdlib"))
    return [
        insertion
        for file in bank.LIBRARY_FILES
        for insertion in bank.insertions(file, (library / file).read_bytes(), PER_FILE, draw)
    ]


def damaged(insertions: list[bank.Insertion], damage: str) -> list[tuple[bank.Insertion, Mapping[str, str]]]:
    found = ((insertion, bank.damaged(insertion, damage)) for insertion in insertions)
    return [(insertion, target) for insertion, target in found if target is not None]


def test_there_are_enough_damaged_files_of_every_kind(insertions: list[bank.Insertion]) -> None:
    counts = {damage: len(damaged(insertions, damage)) for damage in bank.DAMAGES}
    assert sum(counts.values()) >= 400 and min(counts.values()) >= 40, counts


@pytest.mark.parametrize("damage", bank.DAMAGES)
def test_damage_is_refused_and_its_cause_is_named(insertions: list[bank.Insertion], damage: str) -> None:
    outcomes = [bank.by_edit(insertion, target) for insertion, target in damaged(insertions, damage)]
    kinds = Counter(outcome.kind for outcome in outcomes)
    # An edit whose anchor is the line below is still right when the line above is damaged.
    assert set(kinds) <= {"refused", "right"} and kinds["refused"] > 10 * kinds["right"], kinds
    said = {outcome.said for outcome in outcomes if outcome.kind == "refused"}
    assert said <= EXPECTED[damage]


def test_an_edit_on_its_own_file_is_right(insertions: list[bank.Insertion]) -> None:
    kinds = Counter(bank.by_edit(found, {found.edit.relative: found.base_text}).kind for found in insertions)
    assert set(kinds) == {"right"}


def test_the_bank_can_tell_harm_from_refusal(insertions: list[bank.Insertion]) -> None:
    kinds = {
        damage: {bank.by_replacement(found, target).kind for found, target in damaged(insertions, damage)}
        for damage in ("twin", "applied before", "moved to another file")
    }
    assert "wrong" in kinds["twin"] and "twice" in kinds["applied before"]
    assert kinds["moved to another file"] == {"silent"}


@pytest.mark.slow
def test_real_changes_between_releases_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    found = bank.carried(["0.28.0", "0.30.0", "0.32.0", "0.33.0"], per_file=12)
    with capsys.disabled():
        print(f"\n{bank.table(found)}")
    assert bank.total(found, "this project") >= 400
    assert bank.harm(found, "this project") == 0
    assert bank.harm(found, "unchecked replace") > 0
