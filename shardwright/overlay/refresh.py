"""Carry a patch to another engine version: a three-way merge of the patched file, its base, and the new file."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from pathlib import Path

from shardwright.connect.trees import PACKAGE, SourceTree
from shardwright.errors import DeployError
from shardwright.overlay.anchors import Refusal, Splice, place
from shardwright.overlay.compose import compose
from shardwright.overlay.edits import Edit
from shardwright.overlay.importer import Change, edit_for
from shardwright.overlay.patch import Patch
from shardwright.overlay.source import Source, parse_source
from shardwright.overlay.verdicts import OverlayError


@dataclass(frozen=True)
class Refreshed:
    """One edit on the new engine. `state`: unchanged, moved, gone (upstream has it) or conflict.

    `edit` is where it goes now; `conflict` the merged file with both sides marked.
    """

    edit_id: str
    relative: str
    state: str
    edit: Edit | None
    conflict: str = ""


def refresh_patch(patch: Patch, base: SourceTree, new: SourceTree) -> list[Refreshed]:
    """Merge the patch, as it stands on `base`, into `new`. Writes nothing.

    `base` must be an engine on which every edit fits; DeployError otherwise, and without git.
    """
    edits = [edit for edit in patch.edits_for(base.vllm_version) if edit.op != "new_module"]
    results = []
    for relative in sorted({edit.relative for edit in edits}):
        mine = [edit for edit in edits if edit.relative == relative]
        results += list(_refresh_file(relative, mine, base, new))
    return results


def diff_patches(patches: Sequence[Patch], tree: SourceTree) -> str:
    """What the patches change in an engine, as a unified diff; OverlayError when one does not fit."""
    composition = compose(patches, tree)
    if composition.problems:
        raise OverlayError("nothing to show: the patches do not fit", composition.problems)
    parts: list[str] = []
    for relative, content in sorted(composition.contents().items()):
        old = tree.read(relative).decode() if tree.exists(relative) else ""
        before, after = old.splitlines(keepends=True), content.decode().splitlines(keepends=True)
        path = f"{PACKAGE}/{relative}"
        parts += unified_diff(before, after, f"a/{path}" if old else "/dev/null", f"b/{path}")
    return "".join(parts)


def _refresh_file(relative: str, edits: Sequence[Edit], base: SourceTree, new: SourceTree) -> Iterator[Refreshed]:
    old_text = _text(base, relative)
    patched = _spliced(edits, old_text)
    try:
        new_text = _text(new, relative)
    except FileNotFoundError:
        yield from (Refreshed(edit.id, relative, "gone", None) for edit in edits)
        return
    source = parse_source(new_text.encode())
    for edit in edits:
        if not isinstance(place(edit, source), Refusal):
            yield Refreshed(edit.id, relative, "unchanged", edit)
            continue
        merged, conflicts = _merge(_spliced([edit], old_text), old_text, new_text)
        if merged == new_text:
            yield Refreshed(edit.id, relative, "gone", None)
            continue
        moved = None if conflicts else _as_edit(edit, source, merged, relative)
        yield Refreshed(edit.id, relative, "moved" if moved else "conflict", moved, "" if moved else merged)
    whole, conflicts = _merge(patched, old_text, new_text)
    if conflicts and all(not isinstance(place(edit, source), Refusal) for edit in edits):
        # Each fits by its anchor, yet beside one of them upstream changed a line: a person should read it.
        yield Refreshed("", relative, "conflict", None, whole)


def _text(tree: SourceTree, relative: str) -> str:
    return "\n".join([*parse_source(tree.read(relative)).lines, ""])


def _spliced(edits: Sequence[Edit], text: str) -> str:
    source = parse_source(text.encode())
    splices: list[Splice] = []
    for edit in edits:
        placed = place(edit, source)
        if isinstance(placed, Refusal):
            raise DeployError(
                f"{edit.id} does not fit the base that it is to be carried from: {placed.message}",
                fix="name an engine on which it fits with --base",
            )
        splices.extend(placed)
    lines = list(source.lines)
    for splice in sorted(splices, key=lambda splice: splice.span, reverse=True):
        start, end = splice.span
        lines[start:end] = splice.lines
    return "\n".join([*lines, ""])


def _as_edit(edit: Edit, source: Source, merged: str, relative: str) -> Edit | None:
    lines = merged.removesuffix("\n").split("\n")
    matcher = SequenceMatcher(None, source.lines, lines, autojunk=False)
    changes = [
        Change(relative, start, end, tuple(lines[first:last]))
        for tag, start, end, first, last in matcher.get_opcodes()
        if tag != "equal"
    ]
    return edit_for(changes[0], source, edit.id) if len(changes) == 1 else None


def _merge(mine: str, base: str, theirs: str) -> tuple[str, bool]:
    """The three-way merge, and whether it holds conflicts."""
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name, text in (("patched", mine), ("base", base), ("new", theirs)):
            names.append(str(Path(folder, name)))
            Path(names[-1]).write_bytes(text.encode())
        command = ["git", "merge-file", "-p", "-L", "patched", "-L", "base", "-L", "new engine", *names]
        try:
            result = subprocess.run(command, capture_output=True)
        except FileNotFoundError:
            raise DeployError("git is not installed", why="the three-way merge is git's", fix="install git") from None
    if result.returncode < 0 or result.returncode > 127:
        raise DeployError(f"git merge-file failed: {result.stderr.decode(errors='replace').strip()[:200]}")
    return result.stdout.decode(), result.returncode > 0
