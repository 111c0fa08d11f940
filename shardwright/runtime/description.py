"""One engine as plain data, as it runs or as it would be started now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MountedFrom:
    """What is mounted at a place: `kind` is bind or volume, `source` a host path or the volume's name."""

    kind: str
    source: str
    readonly: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.source}{' (read-only)' if self.readonly else ''}"


@dataclass(frozen=True)
class FileState:
    """A file or folder at one moment.

    `sha256` is None where nothing is there, and empty for a folder or a file that is too large to hash: those are told
    apart by `inode`. `written_at` and `changed_at` are in unix seconds; the second one also counts a rename. `locked`:
    the content is the one that the overlay's lock names, so it was there before the start.
    """

    sha256: str | None
    inode: int | None = None
    written_at: float = 0.0
    changed_at: float = 0.0
    locked: bool = False


@dataclass(frozen=True)
class Description:
    """An engine, with no value of a variable in it: `env` holds digests.

    `image` is the image's id, empty where the reference names none on this host (or there are no images); `env` and
    `argv` then hold only what the command line itself says. `files` are seen from inside the engine, or, where the
    engine is not started yet, are what it would see. `code_folders` hold code of the engine beside the folders of its
    interpreter. `started_at` is in unix seconds.
    """

    image: str = ""
    image_name: str = ""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, MountedFrom] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileState] = field(default_factory=dict)
    code_folders: tuple[str, ...] = ()
    started_at: float = 0.0


def value_digest(value: str) -> str:
    """What stands for a value that may be a secret: enough to see that it changed."""
    return "sha256:" + hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:12]
