"""A lock that one process of this host holds at a time; it ends with its holder, however that one ends."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwright.errors import DeployError

_NOTE_ATTEMPTS = 5
_NOTE_PAUSE_S = 0.02


@contextmanager
def hold(path: Path, holder_note: str) -> Iterator[None]:
    """Hold the lock file `path` for the length of the block; `holder_note` is the command that others are told of.

    Raises DeployError at once when another process holds it, with its pid, since when, and its command. What a dead
    holder left in the file is no obstacle. The folder is made when it is missing; the file stays.
    """
    handle = _open(path)
    try:
        _lock(handle, path)
        note = {"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S"), "command": holder_note}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(note).encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DeployError(
            f"the lock {path} cannot be opened: {error.strerror}", fix=f"make {path.parent} writable for this user"
        ) from None


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DeployError(
            f"another deploy is at work here: {_holder(handle)}",
            why="two at once would start two engines on one port, or change files that the other one reads",
            fix="wait until it has ended, or stop it, and run again",
        ) from None
    except OSError as error:
        raise DeployError(
            f"the lock {path} cannot be taken: {error.strerror}",
            why="its file system does not support locks",
            fix="set DEPLOY_PROJECT to a folder on a local disk",
        ) from None


def _holder(handle: int) -> str:
    # The winner writes its note just after it has locked, so an empty file is worth a second look.
    for _attempt in range(_NOTE_ATTEMPTS):
        try:
            note = json.loads(os.pread(handle, 4096, 0))
            return f"pid {note['pid']}, since {note['since']}, {note['command']}"
        except (ValueError, KeyError, TypeError):
            time.sleep(_NOTE_PAUSE_S)
    return "it has not said who it is"
