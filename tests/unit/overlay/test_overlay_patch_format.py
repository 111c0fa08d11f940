"""The strict reading of patch.yaml: what is refused, with file, line and key, and what is understood."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from overlay_samples import edit, write_patch

from shardwright.errors import DeployError, UsageError
from shardwright.facts.versions import version_in
from shardwright.overlay.library import find_patch, list_patches
from shardwright.overlay.patch import Patch, read_patch
from shardwright.overlay.targets import Target, series_key, targets

MakePatch = Callable[..., Patch]
NEW = {"op": "new_module", "module": "vllm._overlay.demo", "symbol": None, "find": None}


def place(vllm: str, module: str = "vllm.worker", find: str = "x = 1") -> dict[str, Any]:
    return {"vllm": vllm, "module": module, "find": find}


def variants(*places: dict[str, Any]) -> dict[str, Any]:
    return edit(vllm=None, module=None, symbol=None, find=None, variants=list(places))


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (edit(finds="x"), "did you mean 'find'?"),
        (edit(op="prepend"), "not one of before"),
        (edit(op="new_module"), "not a name for an added module"),
        (edit(**{**NEW, "module": "vllm.worker"}), "not a name for an added module"),
        (edit(**{**NEW, "find": "x"}), "finds nothing"),
        (edit(**{**NEW, "symbol": "A"}), "no symbol to edit"),
        (edit(op="append_symbol"), "finds nothing"),
        (edit(find=None), "one to three lines"),
        (edit(find="  \n"), "one to three lines"),
        (edit(module="v1/worker.py"), "not a module of the engine"),
        (edit(module="vllm._overlay.demo"), "not a module of the engine"),
        (edit(module="vllm...etc"), "not a module of the engine"),
        (edit(symbol="Worker:load"), "not a qualified name"),
        (edit(vllm="0.30"), "not a version range"),
        (edit(vllm=None), "'vllm' is missing"),
        (edit(vllm=" "), "range is empty"),
        (edit(count=0), "below 1"),
        (edit(body="../body.pyfrag"), "not a .pyfrag file"),
        (edit(body="gone.pyfrag"), "is not there"),
        (edit(id="One Two"), "not an edit name"),
        (edit(variants=[place(">=0.31")]), "both here and under variants"),
        (variants(place(">=0.30,<0.32"), place(">=0.31,<0.33")), "admit vLLM 0.31.0"),
        (variants({**place(">=0.30"), "line": 3}), "unknown key"),
    ],
)
def test_a_wrong_edit_is_refused_with_its_line(make_patch: MakePatch, bad: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        make_patch(bad)
    assert complaint in f"{raised.value.what} {raised.value.fix}"
    assert "patch.yaml:" in raised.value.what


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"remedy": ["pp-orphans"]}, "did you mean 'remedies'?"),
        ({"plan_effects": {"indexer_on_orphans": True}}, "did you mean 'indexers_on_orphans'?"),
        ({"plan_effects": {"boundary_bytes_per_token": -1}}, "below 0"),
        ({"upstream": {"status": "unknown"}}, "not one of pending"),
        ({"covers": {"targets": "edits"}}, "unknown key"),
        ({"platforms": ["gpu"]}, "not one of cuda"),
        ({"conflicts": ["../x"]}, "not a patch name"),
        ({"expect": {"0.31": "OK"}}, "not a version range"),
        ({"edits": []}, "at least one edit"),
        ({"id": "other"}, "folder named 'demo'"),
    ],
)
def test_a_wrong_key_is_refused_with_its_line(make_patch: MakePatch, keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        make_patch(**keys)
    assert complaint in f"{raised.value.what} {raised.value.fix}"
    assert "patch.yaml:" in raised.value.what


def test_two_edits_of_one_name_are_refused(make_patch: MakePatch) -> None:
    with pytest.raises(UsageError, match="two edits are named 'one'"):
        make_patch(edit(), edit(find="return self.ready"))


def test_an_empty_body_is_refused(make_patch: MakePatch) -> None:
    with pytest.raises(UsageError, match=r"body\.pyfrag is empty"):
        make_patch(body="\n")


def test_a_body_that_is_not_text_is_refused(make_patch: MakePatch) -> None:
    directory = Path(make_patch().directory)
    (directory / "body.pyfrag").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_patch(directory)


def test_the_place_follows_the_version(make_patch: MakePatch) -> None:
    patch = make_patch(variants(place("<0.30", "vllm.old"), place(">=0.30,<0.32", "vllm.new")))
    assert [patch.edits_for(version)[0].module for version in ("0.28.0", "0.30.1")] == ["vllm.old", "vllm.new"]
    assert patch.supports("0.30.0") and not patch.supports("0.32.0")
    with pytest.raises(DeployError) as raised:
        patch.edits_for("0.32.0")
    assert "demo" in raised.value.what and "0.32.0" in raised.value.what and ">=0.0,<0.32" in raised.value.what


def test_a_patch_is_supported_only_where_all_its_edits_are(make_patch: MakePatch) -> None:
    patch = make_patch(edit(vllm=">=0.30"), edit(id="two", vllm="<0.31"))
    assert patch.supports("0.30.0") and not patch.supports("0.31.0")
    assert patch.ranges() == (">=0.30,<0.31",)


BOUND = st.tuples(st.sampled_from([">=", ">", "<", "<=", "=="]), st.integers(0, 3), st.integers(0, 2))
RANGE = st.lists(BOUND, min_size=1, max_size=2).map(lambda bounds: ",".join(f"{op}0.{a}.{b}" for op, a, b in bounds))


@given(st.lists(RANGE, min_size=2, max_size=3))
def test_ranges_that_overlap_anywhere_are_refused(tmp_path_factory: pytest.TempPathFactory, ranges: list[str]) -> None:
    directory = write_patch(tmp_path_factory.mktemp("p") / "demo", [variants(*(place(text) for text in ranges))])
    versions = [f"0.{minor}.{patch}" for minor in range(5) for patch in range(5)]
    overlap = any(sum(version_in(version, text) for text in ranges) > 1 for version in versions)
    if overlap:
        with pytest.raises(UsageError, match="admit vLLM"):
            read_patch(directory)
    else:
        patch = read_patch(directory)
        shown = [any(version_in(version, text) for text in patch.ranges()) for version in versions]
        assert shown == [patch.supports(version) for version in versions]


def test_the_digest_covers_metadata_and_bodies_but_not_line_ends(make_patch: MakePatch) -> None:
    directory = Path(make_patch().directory)
    body, meta = directory / "body.pyfrag", directory / "patch.yaml"
    digests = [read_patch(directory).digest]
    for file, text in ((body, "self.extra = 2\n"), (meta, meta.read_text() + "# note\n")):
        file.write_text(text)
        digests.append(read_patch(directory).digest)
    assert len(set(digests)) == 3
    meta.write_bytes(meta.read_bytes().replace(b"\n", b"\r\n"))
    assert read_patch(directory).digest == digests[-1]


def test_targets_name_each_path_once_and_the_additive_folder_as_one(make_patch: MakePatch) -> None:
    first = make_patch(edit(), edit(id="two", find="x = 1"), edit(id="new", **NEW), patch_id="first")
    second = make_patch(
        edit(module="vllm.v1.utils"), edit(id="new", **{**NEW, "module": "vllm._overlay.b"}), patch_id="b"
    )
    assert targets([first, second], "0.30.0") == (
        Target("_overlay", adds=True),
        Target("v1/utils.py", adds=False),
        Target("worker.py", adds=False),
    )
    with pytest.raises(DeployError):
        targets([first], "0.29.0")


def test_the_series_key_follows_order_content_and_version(make_patch: MakePatch) -> None:
    one, two = make_patch(patch_id="one"), make_patch(patch_id="two")
    keys = {series_key([one, two], "0.30.0"), series_key([two, one], "0.30.0"), series_key([one], "0.30.0")}
    assert len({*keys, series_key([one, two], "0.31.0")}) == 4
    assert series_key([one], "0.30.0+cpu") == series_key([one], "0.30")
    assert all(len(key) == 12 for key in keys)


def test_a_project_patch_hides_the_bundled_one(make_patch: MakePatch, tmp_path: Path) -> None:
    own = make_patch(root="own", patch_id="demo", body="own = 1\n")
    make_patch(root="bundled", patch_id="demo", aliases=["old_name"])
    bundled = make_patch(root="bundled", patch_id="other", aliases=["other_name"])
    roots = [tmp_path / "own", tmp_path / "bundled"]
    assert find_patch("demo", roots) == own
    assert find_patch("other_name", roots) == bundled
    assert find_patch("old_name", roots) is None
    assert find_patch("../bundled/demo", roots) is None
    assert list_patches(roots) == (own, bundled)


def test_the_series_gives_the_order_and_must_name_what_is_there(make_patch: MakePatch, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        make_patch(patch_id=name)
    series = tmp_path / "patches" / "series.yaml"
    series.write_text("series: [c, a]\n")
    assert [patch.id for patch in list_patches([tmp_path / "patches"])] == ["c", "a", "b"]
    series.write_text("series: [c, d]\n")
    with pytest.raises(UsageError, match=r"series.yaml:1: series: 'd' has no patch.yaml"):
        list_patches([tmp_path / "patches"])


def test_a_broken_patch_does_not_hide_its_neighbours(make_patch: MakePatch, tmp_path: Path) -> None:
    good = make_patch(patch_id="good")
    (Path(make_patch(patch_id="bad").directory) / "patch.yaml").write_text("id: [\n")
    assert find_patch("good", [tmp_path / "patches"]) == good
