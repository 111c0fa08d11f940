"""What upstream did to the ground of a patch: took the change itself, rewrote the function, moved what it imports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from overlay_samples import WORKER, MemoryTree, edit, new_module

from shardwright.errors import DeployError
from shardwright.overlay.compose import compose
from shardwright.overlay.patch import Patch
from shardwright.overlay.report import accept_symbols, check_patch
from shardwright.overlay.verdicts import Verdict

MakePatch = Callable[..., Patch]


def verdicts(patch: Patch, tree: MemoryTree) -> list[Verdict]:
    return [row.verdict for row in check_patch(patch, tree)]


def applied(patch: Patch, tree: MemoryTree) -> MemoryTree:
    """An engine whose own files hold what the patch does."""
    contents = compose([patch], tree).contents()
    files = {name: data.rpartition(b"__overlay__")[0] for name, data in contents.items()}
    return MemoryTree({**tree.files, **files})


@pytest.mark.parametrize(
    "changes",
    [
        {"op": "before"},
        {"op": "after", "find": "self.ready = False"},
        {"op": "replace", "find": "self.start()"},
        {"op": "append_symbol", "symbol": "Worker", "find": None},
        {"op": "append_symbol", "symbol": None, "find": None},
    ],
)
def test_a_patch_that_upstream_already_contains_is_obsolete(
    tree: MemoryTree, make_patch: MakePatch, changes: dict[str, str]
) -> None:
    body = "def extra():\n    return 1\n" if changes["op"] == "append_symbol" else "self.extra = 1\n"
    patch = make_patch(edit(**changes), body=body)
    assert verdicts(patch, tree) == [Verdict.OK]
    (row,) = check_patch(patch, applied(patch, tree))
    assert row.verdict is Verdict.OBSOLETE and "upstream contains the whole patch" in row.message
    assert "remove demo from the layout" in row.fix


def test_half_a_patch_in_upstream_is_already_there_and_not_obsolete(tree: MemoryTree, make_patch: MakePatch) -> None:
    both = make_patch(edit(), edit(id="two", symbol="Other.load", find="return self.ready"))
    half = make_patch(edit(), patch_id="half")
    assert verdicts(both, applied(half, tree)) == [Verdict.ALREADY, Verdict.OK]


def test_a_like_line_elsewhere_in_the_function_is_not_taken_for_the_patch(
    tree: MemoryTree, make_patch: MakePatch
) -> None:
    assert verdicts(make_patch(edit(find="self.start()"), body="self.ready = False\n"), tree) == [Verdict.OK]


def test_a_function_that_was_rewritten_blocks_until_somebody_looked(
    tree: MemoryTree, make_patch: MakePatch, tmp_path: Path
) -> None:
    patch = make_patch()
    accept_symbols(patch, tree)
    assert verdicts(patch, tree) == [Verdict.OK]
    moved = MemoryTree({"worker.py": WORKER.replace(b"self.ready = False", b"self.ready = None")})
    (row,) = check_patch(patch, moved)
    assert row.verdict is Verdict.SYMBOL_CHANGED and "deploy patch check demo --accept" in row.fix
    accept_symbols(patch, moved)
    assert verdicts(patch, moved) == verdicts(patch, tree) == [Verdict.OK]
    recorded = json.loads((Path(patch.directory) / "verified.json").read_text())
    assert len(recorded["one"]) == 2


def test_a_record_that_cannot_be_written_is_one_clear_error(
    tree: MemoryTree, make_patch: MakePatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shardwright.overlay.verified.write_file", refuse)
    with pytest.raises(DeployError, match="cannot be written: Permission denied"):
        accept_symbols(make_patch(), tree)


def test_a_symbol_that_is_not_there_is_not_accepted(tree: MemoryTree, make_patch: MakePatch) -> None:
    patch = make_patch(edit(symbol="Worker.gone"))
    accept_symbols(patch, tree)
    assert "one" not in json.loads((Path(patch.directory) / "verified.json").read_text())


def test_another_function_of_the_file_may_change_freely(tree: MemoryTree, make_patch: MakePatch) -> None:
    patch = make_patch()
    accept_symbols(patch, tree)
    tree.files["worker.py"] = b"# a new line\n" + WORKER.replace(b"max(", b"min(")
    assert verdicts(patch, tree) == [Verdict.OK]


def test_a_damaged_record_of_what_was_looked_at_is_one_clear_error(tree: MemoryTree, make_patch: MakePatch) -> None:
    patch = make_patch()
    (Path(patch.directory) / "verified.json").write_text("[]")
    with pytest.raises(DeployError, match=r"verified\.json cannot be read"):
        check_patch(patch, tree)


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ("from vllm.gone import x\n", "vllm.gone"),
        ("from vllm.other import gone\n", "vllm.other.gone"),
        ("import vllm.gone\n", "vllm.gone"),
        ("from vllm._overlay import unlisted\n", "vllm._overlay"),
    ],
)
def test_an_import_that_leads_nowhere_is_refused_before_a_start(
    tree: MemoryTree, make_patch: MakePatch, body: str, missing: str
) -> None:
    tree.files["other.py"] = b"here = 1\n"
    (row,) = check_patch(make_patch(body=body), tree)
    assert row.verdict is Verdict.BREAKS_IMPORT and missing in row.message


@pytest.mark.parametrize(
    "body",
    [
        "from vllm.other import here\n",
        "import vllm.other as other\n",
        "from vllm.pack import sub\n",
        "from vllm.open import anything\n",
        "from vllm.starred import anything\n",
        "import torch\n",
    ],
)
def test_an_import_that_leads_somewhere_or_may_do_so_at_run_time_is_taken(
    tree: MemoryTree, make_patch: MakePatch, body: str
) -> None:
    tree.files |= {
        "other.py": b"here = 1\n",
        "pack/__init__.py": b"",
        "pack/sub.py": b"",
        "open.py": b"def __getattr__(name):\n    return 1\n",
        "starred.py": b"from vllm.other import *\n",
    }
    assert verdicts(make_patch(body=body), tree) == [Verdict.OK]


def test_a_local_name_that_upstream_renamed_is_found_without_running_it(
    tree: MemoryTree, make_patch: MakePatch
) -> None:
    tree.files["worker.py"] = b"def load(config):\n    size = config\n    return size\n"
    where = {"symbol": "load", "find": "return size"}
    good, bad = (
        make_patch(edit(**where), patch_id="good", body="size += 1\n"),
        make_patch(edit(**where), patch_id="bad", body="print(_size)\n"),
    )
    assert verdicts(good, tree) == [Verdict.OK]
    (row,) = check_patch(bad, tree)
    assert row.verdict is Verdict.BREAKS_IMPORT and "_size" in row.message


def test_an_added_module_may_be_imported_by_the_edits_of_its_patch(tree: MemoryTree, make_patch: MakePatch) -> None:
    bodies = {"module.pyfrag": "def run():\n    return 1\n"}
    module = new_module(body="module.pyfrag")
    fine = make_patch(module, edit(), body="from vllm._overlay.demo import run\nrun()\n", bodies=bodies)
    wrong = make_patch(
        module, edit(), body="from vllm._overlay.demo import walk\nwalk()\n", bodies=bodies, patch_id="wrong"
    )
    assert verdicts(fine, tree) == [Verdict.OK, Verdict.OK]
    assert verdicts(wrong, tree) == [Verdict.OK, Verdict.BREAKS_IMPORT]
