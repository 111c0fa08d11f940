"""Write an overlay folder: all files of all patches with their lock, or nothing and every reason."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from shardwright.connect.atomic import staged_directory, write_file
from shardwright.connect.trees import PACKAGE, SourceTree
from shardwright.errors import DeployError
from shardwright.facts.versions import parse_version
from shardwright.overlay.compose import Composition, compose, engine_label
from shardwright.overlay.lock import (
    LOCK_FILE,
    SCHEMA,
    Lock,
    LockedAddition,
    LockedFile,
    LockedPatch,
    read_lock,
    verify_overlay,
)
from shardwright.overlay.patch import Patch
from shardwright.overlay.targets import series_key
from shardwright.overlay.verdicts import EditVerdict, OverlayError, Verdict


def build_overlay(patches: Sequence[Patch], vllm_version: str, tree: SourceTree, destination: Path) -> Lock:
    """Build the overlay of `patches`, in their order, from the pristine files of `tree` into `destination`.

    A destination that already holds exactly this is left alone; any other is replaced in one step. Raises OverlayError
    with the problems of all patches, DeployError when the tree is another version than the layout says.
    """
    if parse_version(tree.vllm_version) != parse_version(vllm_version):
        raise DeployError(
            f"the layout says vLLM {vllm_version}, {tree.identity} holds {tree.vllm_version}",
            why="patches are placed by version; those of another version may land in the wrong code",
            fix=f"write engine.vllm: {tree.vllm_version} in the layout, or name the right engine",
        )
    composition = compose(patches, tree)
    problems = (*_relation_problems(patches, tree), *composition.problems)
    if problems:
        raise OverlayError(_summary(problems, tree), problems)
    lock = _lock(patches, tree, composition)
    if _is_current(destination, patches, lock):
        return lock
    with staged_directory(destination) as staged:
        for relative, content in composition.contents().items():
            write_file(staged / PACKAGE / relative, content)
        write_file(staged / LOCK_FILE, lock.encode())
    return lock


def _relation_problems(patches: Sequence[Patch], tree: SourceTree) -> Iterator[EditVerdict]:
    present = [patch.id for patch in patches]
    for patch in patches:
        found: list[tuple[Verdict, str, str]] = []
        if present.count(patch.id) > 1:
            found.append((Verdict.CONFLICT, "is listed twice", "list it once"))
        for name in patch.requires:
            if name not in present:
                found.append((Verdict.BLOCKED_BY, f"needs {name}, which is not listed", f"add {name} to patches"))
        for name in patch.conflicts:
            if name in present:
                found.append((Verdict.CONFLICT, f"excludes {name}, which is listed too", "leave one of the two out"))
        for verdict, message, fix in found:
            yield EditVerdict(patch.id, "", engine_label(tree), verdict, "", message, fix)


def _summary(problems: Sequence[EditVerdict], tree: SourceTree) -> str:
    kinds = Counter(problem.verdict.value for problem in problems)
    counted = ", ".join(f"{count} {name}" if count > 1 else name for name, count in kinds.items())
    names = ", ".join(dict.fromkeys(problem.patch for problem in problems))
    return f"{names}: refused on vLLM {tree.vllm_version} ({counted}); nothing was written"


def _lock(patches: Sequence[Patch], tree: SourceTree, composition: Composition) -> Lock:
    return Lock(
        schema=SCHEMA,
        engine=tree.identity,
        vllm=tree.vllm_version,
        root=tree.root,
        series=series_key(patches, tree.vllm_version),
        patches=tuple(LockedPatch(patch.id, patch.digest) for patch in patches),
        files=tuple(
            LockedFile(file.relative, file.base_sha256, hashlib.sha256(file.content).hexdigest(), file.edits)
            for file in composition.files
        ),
        additive=tuple(
            LockedAddition(file.relative, hashlib.sha256(file.content).hexdigest()) for file in composition.added
        ),
    )


def _is_current(destination: Path, patches: Sequence[Patch], lock: Lock) -> bool:
    return not verify_overlay(destination, patches, lock.vllm, lock.engine) and read_lock(destination) == lock
