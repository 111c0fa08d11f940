"""Pristine files that overlays were built from, kept by digest: the base of a later three-way merge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwright.connect.atomic import write_file
from shardwright.connect.trees import SourceTree
from shardwright.overlay.lock import LOCK_FILE, Lock, read_lock

BASES = "bases"
"""Folder of the kept files below `overlays/`."""


def keep_bases(lock: Lock, tree: SourceTree, overlays: Path) -> None:
    """Store the base file of every file that `lock` covers, once for each content."""
    for file in lock.files:
        kept = overlays / BASES / f"{file.base_sha256}.py"
        if not kept.is_file():
            write_file(kept, tree.read(file.relative))


@dataclass(frozen=True)
class StoredTree:
    """The base files of one lock, read back; it holds nothing else of the engine."""

    lock: Lock
    folder: Path

    @property
    def identity(self) -> str:
        return self.lock.engine

    @property
    def root(self) -> str:
        return self.lock.root

    @property
    def vllm_version(self) -> str:
        return self.lock.vllm

    def read(self, relative: str) -> bytes:
        for file in self.lock.files:
            if file.relative == relative:
                data = (self.folder / f"{file.base_sha256}.py").read_bytes()
                if hashlib.sha256(data).hexdigest() == file.base_sha256:
                    return data
        raise FileNotFoundError(relative)

    def exists(self, relative: str) -> bool:
        return any(file.relative == relative for file in self.lock.files)


def stored_base(patch_id: str, overlays: Path) -> StoredTree | None:
    """The kept base of the newest overlay that holds the patch; None where none was built."""
    locks = sorted(_locks(overlays), key=lambda found: found[0], reverse=True)
    for _time, lock in locks:
        complete = all((overlays / BASES / f"{file.base_sha256}.py").is_file() for file in lock.files)
        if complete and any(patch.id == patch_id for patch in lock.patches):
            return StoredTree(lock, overlays / BASES)
    return None


def _locks(overlays: Path) -> Iterator[tuple[float, Lock]]:
    for file in overlays.glob(f"*/*/{LOCK_FILE}"):
        lock = read_lock(file.parent)
        if lock is not None:
            yield file.stat().st_mtime, lock
