"""Kept verdicts are given only for the same question about the same files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from overlay_samples import WORKER, MemoryTree, edit

from shardwright.campaign import checks
from shardwright.campaign.checks import check_kept
from shardwright.connect.trees import SourceTree, WheelTree
from shardwright.overlay.patch import Patch
from shardwright.overlay.reach import Reacher
from shardwright.overlay.report import accept_symbols, check_patch

MakePatch = Callable[..., Patch]


def wheel(folder: Path, worker: bytes, record: str) -> WheelTree:
    file = folder / "vllm-0.30.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("vllm/_version.py", "__version__ = version = '0.30.0'\n")
        archive.writestr("vllm/worker.py", worker)
        archive.writestr("vllm-0.30.0.dist-info/RECORD", record)
    return WheelTree(file)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The patches that were really looked at."""
    calls: list[str] = []

    def counting(patch: Patch, *rest: object) -> object:
        calls.append(patch.id)
        return check_patch(patch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(checks, "check_patch", counting)
    return calls


def rows(patch: Patch, tree: SourceTree, folder: Path, platform: str | None = None) -> list[object]:
    return list(check_kept(patch, tree, platform, Reacher(tree), folder / "cache"))


def test_the_same_question_is_answered_alike_and_looked_at_once(
    make_patch: MakePatch, tmp_path: Path, asked: list[str]
) -> None:
    patch, tree = make_patch(edit(), edit(id="two", find="gone")), wheel(tmp_path, WORKER, "1")
    first = rows(patch, tree, tmp_path)
    assert first == rows(patch, tree, tmp_path) == check_patch(patch, tree)
    assert asked == ["demo"]


def test_another_engine_patch_platform_or_record_is_looked_at_anew(
    make_patch: MakePatch, tmp_path: Path, asked: list[str]
) -> None:
    patch, tree = make_patch(), wheel(tmp_path, WORKER, "1")
    rows(patch, tree, tmp_path)
    rows(patch, tree, tmp_path, "cpu")
    rows(patch, wheel(tmp_path, WORKER.replace(b"if self", b"if not self"), "2"), tmp_path)
    rows(make_patch(body="self.other = 1\n"), tree, tmp_path)
    accept_symbols(patch, tree)
    rows(patch, tree, tmp_path)
    assert len(asked) == 5


def test_an_installed_package_is_always_looked_at(
    make_patch: MakePatch, tree: MemoryTree, tmp_path: Path, asked: list[str]
) -> None:
    for _time in range(2):
        rows(make_patch(), tree, tmp_path)
    assert len(asked) == 2 and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '[{"verdict": "FINE"}]'])
def test_a_damaged_record_is_looked_at_anew(
    make_patch: MakePatch, tmp_path: Path, asked: list[str], damage: str
) -> None:
    patch, tree = make_patch(), wheel(tmp_path, WORKER, "1")
    first = rows(patch, tree, tmp_path)
    (file,) = (tmp_path / "cache" / "checks").iterdir()
    file.write_text(damage)
    assert rows(patch, tree, tmp_path) == first and len(asked) == 2
