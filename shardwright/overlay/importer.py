"""Turn a unified diff into the edits of a patch: symbols and short anchors instead of line numbers.

Each change is located exactly in the pristine file, written as an edit, and kept only if placing that edit gives the
very lines that the diff wanted. Nothing is fuzzy, and a change that cannot be told this way is refused with its place.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.connect.atomic import staged_directory, write_file
from shardwright.connect.trees import PACKAGE, SourceTree
from shardwright.errors import DeployError, UsageError
from shardwright.facts.versions import parse_version
from shardwright.overlay.anchors import Refusal, Splice, place
from shardwright.overlay.compose import collide
from shardwright.overlay.edits import ADDITIVE_PACKAGE, Edit
from shardwright.overlay.patch import PATCH_FILE, Patch, read_patch
from shardwright.overlay.source import Source, parse_source

_MOST_ANCHOR_LINES = 3
_ADDED = re.compile(rf"^{ADDITIVE_PACKAGE}/([a-z][a-z0-9_]*)\.py$", re.ASCII)


@dataclass(frozen=True)
class Change:
    """Replace the pristine lines `start` to `end` (half-open, from 0) of one file by `lines`."""

    relative: str
    start: int
    end: int
    lines: tuple[str, ...]


def import_diff(diff: str, tree: SourceTree, directory: Path, *, title: str, why: str, inert_when: str) -> Patch:
    """Write the patch folder `directory` with the edits of `diff`, placed for the version of `tree`.

    Raises UsageError when the diff cannot be read or the folder is taken, DeployError when a hunk does not stand in
    the tree exactly once or a change cannot be written as an edit; then nothing is written.
    """
    if directory.exists():
        raise UsageError(f"{directory} is there already", fix="choose another --id")
    changes, added = _changes(diff, tree)
    edits = [*_new_modules(added), *_edits(changes, tree)]
    if not edits:
        raise UsageError("the diff changes no Python file of the engine")
    major, minor, _patch = parse_version(tree.vllm_version)
    data: dict[str, Any] = {
        "id": directory.name,
        "title": title,
        "why": why,
        "upstream": {"status": "pending"},
        "inert_when": inert_when,
        "edits": [_entry(edit, f">={major}.{minor},<{major}.{minor + 1}") for edit in edits],
    }
    with staged_directory(directory) as staged:
        for edit in edits:
            write_file(staged / f"{edit.id}.pyfrag", f"{edit.body.rstrip()}\n".encode())
        write_file(staged / PATCH_FILE, _yaml(data).encode())
    return read_patch(directory)


def edit_for(change: Change, source: Source, edit_id: str, beside: Sequence[Splice] = ()) -> Edit | None:
    """The edit with the shortest anchor that makes exactly this change; None when there is none.

    `beside`: the splices of other edits to the same file, with which it may not collide.
    """
    wanted = (*source.lines[: change.start], *change.lines, *source.lines[change.end :])
    for edit in _candidates(change, source, edit_id):
        placed = place(edit, source)
        if isinstance(placed, Refusal) or len(placed) != 1:
            continue
        (splice,) = placed
        if any(collide(splice, other) for other in beside):
            continue
        start, end = splice.span
        if (*source.lines[:start], *splice.lines, *source.lines[end:]) == wanted:
            return edit
    return None


def _candidates(change: Change, source: Source, edit_id: str) -> Iterator[Edit]:
    module = f"{PACKAGE}." + change.relative.removesuffix(".py").replace("/", ".")
    start, end = change.start, change.end
    for count in range(1, _MOST_ANCHOR_LINES + 1):
        forms: list[tuple[str, int, int, Sequence[str]]] = []
        if start == end:
            forms = [
                ("after", start - count, start, change.lines),
                ("before", start, start + count, change.lines),
                ("replace", start - count, start, (*source.lines[max(start - count, 0) : start], *change.lines)),
                ("replace", start, start + count, (*change.lines, *source.lines[start : start + count])),
            ]
        else:
            more = count - 1
            forms = [
                (
                    "replace",
                    start - before,
                    end + after,
                    (*source.lines[max(start - before, 0) : start], *change.lines, *source.lines[end : end + after]),
                )
                for before, after in dict.fromkeys([(0, more), (more, 0), (more, more)])
            ]
        for op, first, last, body in forms:
            if first < 0 or last > len(source.lines) or not any(line.strip() for line in body):
                continue
            find = textwrap.dedent("\n".join(source.lines[first:last]))
            if find.strip():
                symbol = _innermost(source, first, last)
                text = textwrap.dedent("\n".join(body))
                yield Edit(edit_id, module, symbol, op, find, 1, f"{text}\n")  # type: ignore[arg-type]


def _innermost(source: Source, first: int, last: int) -> str:
    holding = [
        (symbol.span[1] - symbol.span[0], name)
        for name, symbols in source.symbols.items()
        for symbol in symbols
        if symbol.span[0] <= first and last <= symbol.span[1]
    ]
    return min(holding)[1] if holding else ""


def _edits(changes: Sequence[Change], tree: SourceTree) -> Iterator[Edit]:
    sources: dict[str, Source] = {}
    taken: dict[str, list[Splice]] = {}
    for number, change in enumerate(changes, start=1):
        source = sources.setdefault(change.relative, parse_source(tree.read(change.relative)))
        edit = edit_for(change, source, f"edit-{number}", taken.get(change.relative, ()))
        if edit is None:
            raise DeployError(
                f"the change at line {change.start + 1} of {change.relative} cannot be written as an edit",
                why="no one to three lines beside it name its place once and keep its indentation",
                fix="write this edit by hand, see docs/patches.md",
            )
        placed = place(edit, source)
        if not isinstance(placed, Refusal):
            taken.setdefault(change.relative, []).extend(placed)
        yield edit


def _new_modules(added: Sequence[tuple[str, str]]) -> Iterator[Edit]:
    for relative, text in added:
        match = _ADDED.match(relative)
        if match is None:
            raise DeployError(
                f"the diff adds {PACKAGE}/{relative}",
                why="a patch may add modules to the additive package only, which is mounted as one folder",
                fix=f"move it to {PACKAGE}/{ADDITIVE_PACKAGE}/ and import it from there",
            )
        module = f"{PACKAGE}.{ADDITIVE_PACKAGE}.{match[1]}"
        yield Edit(f"module-{match[1].replace('_', '-')}", module, "", "new_module", "", 1, text)


def _changes(diff: str, tree: SourceTree) -> tuple[list[Change], list[tuple[str, str]]]:
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    try:
        files = PatchSet(diff.replace("\r\n", "\n"))
    except UnidiffParseError as error:
        raise UsageError(f"the diff cannot be read: {error}") from None
    changes: list[Change] = []
    added: list[tuple[str, str]] = []
    for file in files:
        relative = _relative(file.path)
        if relative is None:
            continue
        if file.is_removed_file or file.is_rename:
            raise DeployError(f"the diff removes or renames {file.path}", why="an overlay can only cover files")
        if file.is_added_file:
            added.append((relative, "".join(line.value for hunk in file for line in hunk if line.is_added)))
            continue
        try:
            lines = parse_source(tree.read(relative)).lines
        except FileNotFoundError:
            raise DeployError(f"{PACKAGE}/{relative} is not in vLLM {tree.vllm_version}") from None
        for hunk in file:
            changes.extend(_hunk_changes(relative, hunk, lines))
    return changes, added


def _relative(path: str) -> str | None:
    """The path below the package; None for a file outside of it, such as a test."""
    parts = path.split("/")
    if PACKAGE not in parts[:-1] or not path.endswith(".py") or "tests" in parts[: parts.index(PACKAGE)]:
        return None
    return "/".join(parts[parts.index(PACKAGE) + 1 :])


def _hunk_changes(relative: str, hunk: Any, lines: Sequence[str]) -> Iterator[Change]:
    old = [line.value.rstrip("\n") for line in hunk if line.is_context or line.is_removed]
    if not old:
        raise UsageError(
            f"the hunk at line {hunk.source_start} of {relative} has no line of context",
            why="its place would be a line number, which means nothing in another engine",
            fix="make the diff with context: git diff -U3",
        )
    at = [index for index in range(len(lines) - len(old) + 1) if list(lines[index : index + len(old)]) == old]
    stated = hunk.source_start - 1
    if stated in at:
        at = [stated]
    if len(at) != 1:
        raise DeployError(
            f"the hunk at line {hunk.source_start} of {relative} stands {len(at)} times in this engine, not once",
            why="a hunk that is placed by guess may land in another function",
            fix="import it on the version that it was made for, then: deploy patch refresh",
        )
    position, start, new = at[0], None, []
    for line in hunk:
        if line.is_context:
            if start is not None:
                yield Change(relative, start, position, tuple(new))
                start, new = None, []
            position += 1
        else:
            start = position if start is None else start
            if line.is_removed:
                position += 1
            elif line.is_added:
                new.append(line.value.rstrip("\n"))
    if start is not None:
        yield Change(relative, start, position, tuple(new))


def _entry(edit: Edit, versions: str) -> dict[str, Any]:
    place_keys = {"symbol": edit.symbol, "find": edit.find}
    return {
        "id": edit.id,
        "op": edit.op,
        "body": f"{edit.id}.pyfrag",
        "vllm": versions,
        "module": edit.module,
        **{key: value for key, value in place_keys.items() if value},
    }


def _yaml(data: dict[str, Any]) -> str:
    """Plain YAML: texts as JSON strings, which YAML reads, but for texts of several lines."""
    lines = []
    for key, value in data.items():
        if key == "edits":
            lines.append("edits:")
            for entry in value:
                for number, (name, text) in enumerate(entry.items()):
                    lines += _scalar(f"{'  - ' if number == 0 else '    '}{name}", text, 6)
        elif isinstance(value, dict):
            lines.append(f"{key}: {json.dumps(value)}")
        else:
            lines += _scalar(key, value, 2)
    return "\n".join(lines) + "\n"


def _scalar(key: str, text: str, indent: int) -> Iterator[str]:
    if "\n" not in text.strip("\n") or text[:1] in (" ", "\n"):
        yield f"{key}: {json.dumps(text, ensure_ascii=False)}"
        return
    yield f"{key}: |"
    yield from (f"{' ' * indent}{line}" if line else "" for line in text.rstrip("\n").split("\n"))
