"""A diff becomes edits that give exactly its lines; a patch is carried on by three-way merge, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

import pytest
from overlay_samples import WORKER, MemoryTree, edit

from shardwright.errors import DeployError, UsageError
from shardwright.overlay.bases import keep_bases, stored_base
from shardwright.overlay.build import build_overlay
from shardwright.overlay.compose import compose
from shardwright.overlay.importer import import_diff
from shardwright.overlay.patch import Patch
from shardwright.overlay.refresh import diff_patches, refresh_patch

MakePatch = Callable[..., Patch]
ABOUT = {"title": "A change", "why": "it is needed", "inert_when": "never"}

EDITED = (
    WORKER.decode()
    .replace("        self.ready = False\n", "        self.ready = False\n        self.extra = 1\n")
    .replace("            self.start()\n", "            self.begin()\n            self.start()\n")
    .replace("            2,\n", "")
)


def diff(new: str, old: str = WORKER.decode(), path: str = "vllm/worker.py", context: int = 3) -> str:
    lines = unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}", n=context)
    return "".join(lines)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_an_imported_diff_gives_exactly_the_lines_that_it_wanted(
    tree: MemoryTree, tmp_path: Path, context: int
) -> None:
    patch = import_diff(diff(EDITED, context=context), tree, tmp_path / "mine", **ABOUT)
    composition = compose([patch], tree)
    assert composition.problems == ()
    assert composition.contents()["worker.py"].decode().rpartition("__overlay__")[0] == EDITED
    assert {place.symbol for spec in patch.edits for place in spec.places} == {"Worker.load", "Worker.start"}
    assert all(len(place.find.splitlines()) <= 4 for spec in patch.edits for place in spec.places)


def test_the_edits_of_one_diff_do_not_want_the_same_lines(tree: MemoryTree, tmp_path: Path) -> None:
    old = "def f():\n    a = 1\n    x = g()\n    x = g()\n    return x\n"
    new = "def f():\n    a = 2\n    x = g()\n    y = 1\n    x = g()\n    return x\n"
    tree.files["worker.py"] = old.encode()
    patch = import_diff(diff(new, old), tree, tmp_path / "mine", **ABOUT)
    composition = compose([patch], tree)
    assert composition.problems == ()
    assert composition.contents()["worker.py"].decode().rpartition("__overlay__")[0] == new


def test_what_was_imported_survives_lines_that_move(tree: MemoryTree, tmp_path: Path) -> None:
    patch = import_diff(diff(EDITED), tree, tmp_path / "mine", **ABOUT)
    tree.files["worker.py"] = b"import sys\n\nX = sys\n" * 9 + WORKER
    assert compose([patch], tree).problems == ()


def test_a_hunk_that_does_not_stand_in_the_engine_is_refused_not_placed_nearby(
    tree: MemoryTree, tmp_path: Path
) -> None:
    other = WORKER.decode().replace("self.ready = False", "self.ready = None")
    with pytest.raises(DeployError, match="stands 0 times"):
        import_diff(diff(other.replace("None", "True"), other), tree, tmp_path / "mine", **ABOUT)
    assert not (tmp_path / "mine").exists()


def test_a_hunk_that_only_has_a_line_number_is_refused(tree: MemoryTree, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no line of context"):
        import_diff(diff(EDITED, context=0), tree, tmp_path / "mine", **ABOUT)


def test_new_files_are_taken_only_into_the_additive_package(tree: MemoryTree, tmp_path: Path) -> None:
    new = "--- /dev/null\n+++ b/vllm/{}\n@@ -0,0 +1,1 @@\n+EXTRA = 1\n"
    patch = import_diff(new.format("_overlay/extra.py"), tree, tmp_path / "mine", **ABOUT)
    assert patch.edits[0].places[0].module == "vllm._overlay.extra"
    with pytest.raises(DeployError, match=r"adds vllm/other\.py"):
        import_diff(new.format("other.py"), tree, tmp_path / "other", **ABOUT)


@pytest.mark.parametrize("text", ["", "no diff at all\n", diff(EDITED, path="tests/worker.py")])
def test_a_diff_without_a_change_of_the_engine_is_refused(tree: MemoryTree, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        import_diff(text, tree, tmp_path / "mine", **ABOUT)


def test_a_patch_is_never_imported_over_another(tree: MemoryTree, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        import_diff(diff(EDITED), tree, tmp_path / "mine", **ABOUT)


def test_the_diff_of_a_patch_shows_its_lines_and_its_new_files(tree: MemoryTree, make_patch: MakePatch) -> None:
    shown = diff_patches([make_patch()], tree)
    assert "--- a/vllm/worker.py" in shown and "+        self.extra = 1" in shown


def states(patch: Patch, base: MemoryTree, new: MemoryTree) -> list[str]:
    return [found.state for found in refresh_patch(patch, base, new)]


def test_refresh_tells_what_stays_moves_is_gone_or_conflicts(tree: MemoryTree, make_patch: MakePatch) -> None:
    patch = make_patch()
    assert states(patch, tree, MemoryTree({"worker.py": b"# new\n" + WORKER})) == ["unchanged"]
    renamed = MemoryTree({"worker.py": WORKER.replace(b"class Worker", b"class Engine")})
    (moved,) = refresh_patch(patch, tree, renamed)
    assert moved.state == "moved" and moved.edit is not None and moved.edit.symbol == "Engine.load"
    rewritten = MemoryTree({"worker.py": WORKER.replace(b"if self.ready:", b"if not self.ready:")})
    (conflict,) = refresh_patch(patch, tree, rewritten)
    assert conflict.state == "conflict" and "<<<<<<<" in conflict.conflict
    assert states(patch, tree, MemoryTree({"other.py": b""})) == ["gone"]


def test_a_base_on_which_the_patch_does_not_fit_is_refused(tree: MemoryTree, make_patch: MakePatch) -> None:
    with pytest.raises(DeployError, match="does not fit the base"):
        refresh_patch(make_patch(edit(find="gone")), tree, tree)


def test_the_base_of_a_build_is_kept_by_its_digest(tree: MemoryTree, make_patch: MakePatch, tmp_path: Path) -> None:
    overlays, patch = tmp_path / "overlays", make_patch()
    assert stored_base("demo", overlays) is None
    lock = build_overlay([patch], "0.30.0", tree, overlays / "engine" / "series")
    keep_bases(lock, tree, overlays)
    kept = stored_base("demo", overlays)
    assert kept is not None and kept.read("worker.py") == WORKER and kept.vllm_version == "0.30.0"
    assert states(patch, kept, tree) == ["unchanged"]  # type: ignore[arg-type]
    (file,) = (overlays / "bases").iterdir()
    file.write_bytes(b"edited")
    with pytest.raises(FileNotFoundError):
        kept.read("worker.py")
