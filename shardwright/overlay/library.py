"""Find patches by name in one or more folders; a project's own folder comes before the bundled one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import load_yaml
from shardwright.errors import UsageError
from shardwright.overlay.edits import read_text
from shardwright.overlay.patch import PATCH_FILE, Patch, read_patch

SERIES_FILE = "series.yaml"


def find_patch(name: str, roots: Sequence[Path]) -> Patch | None:
    """The patch with this id, else with this alias; None when no root has it. An earlier root wins.

    An id is found without reading the other patches, so a broken one beside it does no harm.
    """
    if Path(name).name != name:
        return None
    for root in roots:
        if (root / name / PATCH_FILE).is_file():
            return read_patch(root / name)
    return next((patch for patch in list_patches(roots) if name in patch.aliases), None)


def list_patches(roots: Sequence[Path]) -> tuple[Patch, ...]:
    """All patches in the order of each root's series.yaml; an id in an earlier root hides the same id later.

    Folders that series.yaml does not name follow in alphabetical order. UsageError when it names one that is not there.
    """
    found: dict[str, Patch] = {}
    for root in roots:
        for name in _series(root):
            if name not in found:
                found[name] = read_patch(root / name)
    return tuple(found.values())


def _series(root: Path) -> Iterator[str]:
    if not root.is_dir():
        return
    folders = sorted(entry.parent.name for entry in root.glob(f"*/{PATCH_FILE}"))
    listed = _listed(root / SERIES_FILE, folders)
    yield from listed
    yield from (name for name in folders if name not in listed)


def _listed(file: Path, folders: Sequence[str]) -> tuple[str, ...]:
    if not file.is_file():
        return ()
    top = Section(load_yaml(read_text(file), str(file)))
    names = top.texts("series")
    top.finish()
    for name in names:
        if name not in folders:
            raise UsageError(
                f"{top.document.where(('series',))}: series: {name!r} has no {PATCH_FILE}",
                fix=f"remove it from {file.name} or add {file.parent / name / PATCH_FILE}",
            )
        if names.count(name) > 1:
            raise UsageError(f"{top.document.where(('series',))}: series: {name!r} is listed twice")
    return names
