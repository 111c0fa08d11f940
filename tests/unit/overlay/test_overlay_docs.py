"""docs/patches.md shows the format as it is: its example is read, and it names every key, op and verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import load_yaml
from shardwright.overlay.edits import Op
from shardwright.overlay.library import list_patches
from shardwright.overlay.patch import read_patch
from shardwright.overlay.verdicts import Verdict

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "patches.md").read_text()


def test_the_documented_patch_shows_every_key_of_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = re.findall(r"```yaml patch\n(.*?)```", PAGE, re.DOTALL)
    directory = tmp_path / "pp-index-transport"
    directory.mkdir()
    (directory / "patch.yaml").write_text(text)
    for name in re.findall(r"body: (\S+)", text):
        (directory / name).write_text("x = 1\n")
    asked: set[str] = set()
    peek = Section._peek

    def recording(self: Section, key: str) -> object:
        asked.add(key)
        return peek(self, key)

    monkeypatch.setattr(Section, "_peek", recording)
    read_patch(directory)
    marks = load_yaml(text, "docs/patches.md").marks
    shown = {part for path in marks for part in path}
    assert asked - shown == set()


@pytest.mark.parametrize("name", [*(verdict.value for verdict in Verdict), *Op.__args__])  # type: ignore[attr-defined]
def test_every_verdict_and_op_is_documented(name: str) -> None:
    assert re.search(rf"^\| [^|]*\b{name}\b", PAGE, re.MULTILINE)


def test_shipped_patches_are_readable_and_in_the_series() -> None:
    patches = list_patches([ROOT / "patches"])
    (listed,) = [load_yaml((ROOT / "patches" / "series.yaml").read_text(), "series.yaml").data["series"]]
    assert [patch.id for patch in patches] == listed
    for version in ("0.28.0", "0.30.0", "0.32.0", "0.33.0"):
        assert all(patch.supports(version) for patch in patches)


def test_only_transport_clears_orphans_without_a_word_about_equality() -> None:
    patches = {patch.id: patch for patch in list_patches([ROOT / "patches"])}
    assert [name for name, patch in patches.items() if "pp-orphans" in patch.remedies] == ["pp-index-transport"]
    recompute = patches["pp-index-recompute"]
    assert recompute.remedies == ("pp-orphans-by-recompute",) and recompute.aliases == ("pp_index_share_fix",)
    assert recompute.plan_effects.indexers_on_orphans and "does not equal a single stage" in recompute.why
    assert patches["pp-index-transport"].plan_effects.boundary_bytes_per_token == 8192
