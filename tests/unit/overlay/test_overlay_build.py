"""Writing overlays: all or nothing, the same again, and what the lock later notices."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from overlay_samples import WORKER, MemoryTree, edit, new_module

from shardwright.errors import DeployError
from shardwright.overlay.build import build_overlay
from shardwright.overlay.lock import LOCK_FILE, read_lock, verify_overlay
from shardwright.overlay.patch import Patch
from shardwright.overlay.verdicts import OverlayError, Verdict

MakePatch = Callable[..., Patch]
NEW = new_module(body="new.pyfrag")


@pytest.fixture
def patch(make_patch: MakePatch) -> Patch:
    return make_patch(edit(), NEW, bodies={"new.pyfrag": "value = 1\n"})


@pytest.fixture
def built(patch: Patch, tree: MemoryTree, tmp_path: Path) -> Path:
    destination = tmp_path / "overlays" / "demo"
    build_overlay([patch], "0.30.0", tree, destination)
    return destination


def listing(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def inodes(directory: Path) -> dict[str, int]:
    return {name: (directory / name).stat().st_ino for name in listing(directory)}


def test_a_build_writes_whole_files_and_a_lock_that_verifies(built: Path, patch: Patch) -> None:
    assert listing(built) == [LOCK_FILE, "vllm/_overlay/__init__.py", "vllm/_overlay/demo.py", "vllm/worker.py"]
    assert verify_overlay(built, [patch], "0.30.0", "memory:1") == []
    lock = read_lock(built)
    assert lock is not None
    (file,) = lock.files
    assert file.base_sha256 == hashlib.sha256(WORKER).hexdigest()
    assert file.result_sha256 == hashlib.sha256((built / "vllm/worker.py").read_bytes()).hexdigest()
    assert (file.edits[0].symbol, file.edits[0].line) == ("Worker.load", 9)
    assert (lock.engine, lock.vllm, lock.root) == ("memory:1", "0.30.0", "/site/vllm")


def test_generated_files_are_not_writable_for_others_and_never_older_than_the_base(
    patch: Patch, tree: MemoryTree, tmp_path: Path
) -> None:
    before, umask = time.time() - 2, os.umask(0)
    try:
        build_overlay([patch], "0.30.0", tree, tmp_path / "out")
    finally:
        os.umask(umask)
    for path in [tmp_path / "out", *(tmp_path / "out").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
        assert path.stat().st_mtime > before


@pytest.mark.parametrize("existing", [False, True])
def test_a_refused_build_leaves_everything_as_it_was(
    make_patch: MakePatch, patch: Patch, tree: MemoryTree, tmp_path: Path, existing: bool
) -> None:
    destination = tmp_path / "overlays" / "demo"
    if existing:
        build_overlay([patch], "0.30.0", tree, destination)
    before = inodes(tmp_path / "overlays")
    bad = make_patch(edit(find="gone"), edit(id="two", symbol="Gone"), patch_id="bad")
    with pytest.raises(OverlayError) as raised:
        build_overlay([patch, bad], "0.30.0", tree, destination)
    assert inodes(tmp_path / "overlays") == before
    assert raised.value.what == "bad: refused on vLLM 0.30.0 (ANCHOR_GONE, SYMBOL_GONE); nothing was written"
    assert [line.split(":")[0] for line in raised.value.why.splitlines()] == [
        "bad/one ANCHOR_GONE vllm.worker",
        "bad/two SYMBOL_GONE vllm.worker",
    ]
    assert raised.value.fix


def test_a_build_that_dies_while_writing_leaves_nothing(
    patch: Patch, tree: MemoryTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shardwright.overlay.build as build_module

    real, written = build_module.write_file, []

    def full_disk(path: Path, data: bytes) -> None:
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(path)
        real(path, data)

    monkeypatch.setattr(build_module, "write_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        build_overlay([patch], "0.30.0", tree, tmp_path / "overlays" / "demo")
    assert list((tmp_path / "overlays").iterdir()) == []


def test_building_again_touches_nothing(built: Path, patch: Patch, tree: MemoryTree) -> None:
    before = inodes(built)
    build_overlay([patch], "0.30.0", tree, built)
    assert inodes(built) == before


def test_a_tampered_or_outdated_overlay_is_built_anew(built: Path, patch: Patch, tree: MemoryTree) -> None:
    good = (built / "vllm/worker.py").read_bytes()
    (built / "vllm/worker.py").write_text("import os\n")
    build_overlay([patch], "0.30.0", tree, built)
    assert (built / "vllm/worker.py").read_bytes() == good
    tree.files["worker.py"] = WORKER + b"\nlater = 1\n"
    build_overlay([patch], "0.30.0", tree, built)
    assert b"later = 1" in (built / "vllm/worker.py").read_bytes()
    assert sorted(path.name for path in built.parent.iterdir()) == [built.name]


def test_another_version_than_the_layout_says_is_refused(patch: Patch, tree: MemoryTree, tmp_path: Path) -> None:
    tree.vllm_version = "0.30.1"
    with pytest.raises(DeployError) as raised:
        build_overlay([patch], "0.30.0", tree, tmp_path / "out")
    assert "0.30.0" in raised.value.what and "0.30.1" in raised.value.what
    assert not (tmp_path / "out").exists()
    tree.vllm_version = "0.30.0+cpu"
    build_overlay([patch], "0.30.0", tree, tmp_path / "out")


def test_a_missing_companion_and_an_excluded_one_are_refused(
    make_patch: MakePatch, tree: MemoryTree, tmp_path: Path
) -> None:
    needs = make_patch(patch_id="needs", requires=["base"])
    base = make_patch(edit(find="return self.ready"), patch_id="base")
    excludes = make_patch(edit(find="self.ready = False"), patch_id="excludes", conflicts=["base"])
    for patches, verdict in (([needs], Verdict.BLOCKED_BY), ([base, excludes], Verdict.CONFLICT)):
        with pytest.raises(OverlayError) as raised:
            build_overlay(patches, "0.30.0", tree, tmp_path / "out")
        assert [problem.verdict for problem in raised.value.verdicts] == [verdict]
    with pytest.raises(OverlayError, match="CONFLICT"):
        build_overlay([base, base], "0.30.0", tree, tmp_path / "out")
    build_overlay([needs, base], "0.30.0", tree, tmp_path / "out")


def edited(built: Path) -> None:
    (built / "vllm/worker.py").write_bytes((built / "vllm/worker.py").read_bytes() + b"\n")


def removed(built: Path) -> None:
    (built / "vllm/_overlay/demo.py").unlink()


def linked(built: Path) -> None:
    (built / "vllm/worker.py").rename(built.parent / "elsewhere.py")
    (built / "vllm/worker.py").symlink_to(built.parent / "elsewhere.py")


def added(built: Path) -> None:
    (built / "vllm/_overlay/more.py").write_text("")


def opened(built: Path) -> None:
    (built / "vllm/worker.py").chmod(0o664)


def opened_folder(built: Path) -> None:
    (built / "vllm").chmod(0o777)


def lock_edited(built: Path) -> None:
    (built / LOCK_FILE).write_text((built / LOCK_FILE).read_text().replace("memory:1", "memory:2"))


def lock_cut(built: Path) -> None:
    (built / LOCK_FILE).write_bytes((built / LOCK_FILE).read_bytes()[:40])


def lock_of_another_shape(built: Path) -> None:
    (built / LOCK_FILE).write_text(json.dumps({"schema": [], "patches": 3}))


def lock_removed(built: Path) -> None:
    (built / LOCK_FILE).unlink()


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (edited, "TAMPERED worker.py is not what was built"),
        (removed, "TAMPERED _overlay/demo.py is missing"),
        (linked, "TAMPERED worker.py is missing"),
        (added, "EXTRA_FILE vllm/_overlay/more.py was not built"),
        (opened, "WRITABLE demo/vllm/worker.py can be changed by other users: chmod go-w"),
        (opened_folder, "WRITABLE demo/vllm can be changed by other users: chmod go-w"),
        (lock_edited, f"{LOCK_FILE} is damaged or was edited"),
        (lock_cut, f"{LOCK_FILE} is damaged or was edited"),
        (lock_of_another_shape, f"{LOCK_FILE} is damaged or was edited"),
        (lock_removed, "NO_LOCK"),
    ],
)
def test_a_change_after_the_build_is_named(
    built: Path, patch: Patch, harm: Callable[[Path], None], complaint: str
) -> None:
    harm(built)
    (problem,) = verify_overlay(built, [patch], "0.30.0", "memory:1")
    assert complaint in problem


def test_a_damaged_lock_cannot_be_read(built: Path) -> None:
    lock_cut(built)
    with pytest.raises(DeployError, match="damaged or was edited"):
        read_lock(built)
    assert read_lock(built / "nowhere") is None


def test_what_the_lock_does_not_cover_is_named(built: Path, patch: Patch, make_patch: MakePatch) -> None:
    other = make_patch(patch_id="other")
    assert verify_overlay(built, [patch, other], "0.30.0") == ["NOT_COVERED patch other is not in the lock"]
    assert verify_overlay(built, [], "0.30.0") == ["NOT_COVERED patch demo was built in, the layout does not name it"]
    changed = make_patch(edit(), NEW, root="new", bodies={"new.pyfrag": "value = 2\n"})
    assert verify_overlay(built, [changed], "0.30.0") == ["NOT_COVERED patch demo changed after the build"]


def test_the_order_of_the_patches_is_part_of_the_lock(make_patch: MakePatch, tree: MemoryTree, tmp_path: Path) -> None:
    first, second = make_patch(patch_id="first"), make_patch(patch_id="second")
    build_overlay([first, second], "0.30.0", tree, tmp_path / "out")
    (problem,) = verify_overlay(tmp_path / "out", [second, first], "0.30.0")
    assert "first, second" in problem and problem.startswith("NOT_COVERED")


def test_a_swapped_engine_is_named(built: Path, patch: Patch) -> None:
    assert verify_overlay(built, [patch], "0.31.0")[0].startswith("IMAGE_CHANGED built from vLLM 0.30.0")
    (problem,) = verify_overlay(built, [patch], "0.30.0", "sha256:other")
    assert problem == "IMAGE_CHANGED built from memory:1, the engine is sha256:other"
    assert verify_overlay(built, [patch], "0.30.0+cpu") == []
