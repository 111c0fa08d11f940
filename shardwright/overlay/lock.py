"""The lock of an overlay folder: what it was built from, what it holds, and whether that still is so."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardwright.connect.trees import PACKAGE
from shardwright.errors import DeployError, UsageError
from shardwright.facts.versions import parse_version
from shardwright.overlay.compose import PlacedEdit
from shardwright.overlay.patch import Patch

LOCK_FILE = "overlay.lock.json"
SCHEMA = "shardwright/overlay-lock/v1"


@dataclass(frozen=True)
class LockedPatch:
    id: str
    digest: str


@dataclass(frozen=True)
class LockedFile:
    """A patched engine file; `relative` is below the vllm package."""

    relative: str
    base_sha256: str
    result_sha256: str
    edits: tuple[PlacedEdit, ...]


@dataclass(frozen=True)
class LockedAddition:
    """A file of the additive package, which the engine does not have."""

    relative: str
    result_sha256: str


@dataclass(frozen=True)
class Lock:
    """`engine` is the identity of the tree that the base files came from, `root` its vllm package folder."""

    schema: str
    engine: str
    vllm: str
    root: str
    series: str
    patches: tuple[LockedPatch, ...]
    files: tuple[LockedFile, ...]
    additive: tuple[LockedAddition, ...]

    @property
    def lock_sha256(self) -> str:
        """sha256 over everything else, in canonical JSON."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def results(self) -> dict[str, str]:
        """Every generated file below the vllm package, with its sha256."""
        patched = {file.relative: file.result_sha256 for file in self.files}
        return patched | {file.relative: file.result_sha256 for file in self.additive}

    def encode(self) -> bytes:
        """The lock file's bytes."""
        return (json.dumps({**asdict(self), "lock_sha256": self.lock_sha256}, indent=1) + "\n").encode()


def read_lock(directory: Path) -> Lock | None:
    """The lock of an overlay folder; None when there is none. DeployError when it is damaged or edited."""
    file = directory / LOCK_FILE
    try:
        data = json.loads(file.read_bytes())
        lock = _decode(data)
        intact = lock.schema == SCHEMA and lock.lock_sha256 == data["lock_sha256"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise DeployError(
            f"{file} is damaged or was edited",
            why="without it nobody can tell whether the patched files are the ones that were built",
            fix="deploy patch build",
        )
    return lock


def verify_overlay(
    directory: Path, expected: Sequence[Patch], vllm_version: str, engine: str | None = None
) -> list[str]:
    """All that is wrong with an overlay folder, each line beginning with a verdict; empty when it is good.

    `expected` are the layout's patches in their order; `engine`, where known, is the identity of what will run.
    Verdicts: NO_LOCK, TAMPERED, IMAGE_CHANGED, NOT_COVERED, EXTRA_FILE, WRITABLE.
    """
    try:
        lock = read_lock(directory)
    except DeployError as error:
        return [f"TAMPERED {error.what}"]
    if lock is None:
        return [f"NO_LOCK {directory} holds no {LOCK_FILE}: the patches were not built"]
    return [
        *_engine_problems(lock, vllm_version, engine),
        *_patch_problems(lock, expected),
        *_file_problems(lock, directory),
        *_mode_problems(directory),
    ]


def _engine_problems(lock: Lock, vllm_version: str, engine: str | None) -> Iterator[str]:
    if not _same_version(lock.vllm, vllm_version):
        yield f"IMAGE_CHANGED built from vLLM {lock.vllm}, the layout runs {vllm_version}"
    elif engine is not None and engine != lock.engine:
        yield f"IMAGE_CHANGED built from {lock.engine}, the engine is {engine}"


def _same_version(one: str, other: str) -> bool:
    try:
        return parse_version(one) == parse_version(other)
    except UsageError:
        return one == other


def _patch_problems(lock: Lock, expected: Sequence[Patch]) -> Iterator[str]:
    built = {patch.id: patch.digest for patch in lock.patches}
    for patch in expected:
        if patch.id not in built:
            yield f"NOT_COVERED patch {patch.id} is not in the lock"
        elif built[patch.id] != patch.digest:
            yield f"NOT_COVERED patch {patch.id} changed after the build"
    wanted = [patch.id for patch in expected]
    for name in built:
        if name not in wanted:
            yield f"NOT_COVERED patch {name} was built in, the layout does not name it"
    if sorted(built) == sorted(wanted) and list(built) != wanted:
        yield f"NOT_COVERED built in the order {', '.join(built)}, the layout has {', '.join(wanted)}"


def _file_problems(lock: Lock, directory: Path) -> Iterator[str]:
    root = directory / PACKAGE
    results = lock.results()
    for relative, sha256 in results.items():
        file = root / relative
        if not file.is_file() or file.is_symlink():
            yield f"TAMPERED {relative} is missing"
        elif hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            yield f"TAMPERED {relative} is not what was built"
    known = {Path(LOCK_FILE), *(Path(PACKAGE, relative) for relative in results)}
    for entry in sorted(directory.rglob("*")):
        relative_entry = entry.relative_to(directory)
        if (entry.is_symlink() or not entry.is_dir()) and relative_entry not in known:
            yield f"EXTRA_FILE {relative_entry} was not built"


def _mode_problems(directory: Path) -> Iterator[str]:
    for entry in (directory, *sorted(directory.rglob("*"))):
        if not entry.is_symlink() and entry.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield f"WRITABLE {entry.relative_to(directory.parent)} can be changed by other users: chmod go-w"


def _decode(data: Any) -> Lock:
    return Lock(
        schema=str(data["schema"]),
        engine=str(data["engine"]),
        vllm=str(data["vllm"]),
        root=str(data["root"]),
        series=str(data["series"]),
        patches=tuple(LockedPatch(**patch) for patch in data["patches"]),
        files=tuple(
            LockedFile(**{**file, "edits": tuple(PlacedEdit(**edit) for edit in file["edits"])})
            for file in data["files"]
        ),
        additive=tuple(LockedAddition(**addition) for addition in data["additive"]),
    )
