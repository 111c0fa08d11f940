"""A lock that one process holds at a time; it ends with its holder, however that one ends."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardwright.errors import DeployError

_NOTE_ATTEMPTS = 5
_NOTE_PAUSE_S = 0.02


@contextmanager
def hold(path: Path, command: str, message: str = "") -> Iterator[str | None]:
    """Hold the lock file `path` for the length of the block; others are told of `command` and `message`.

    Yields who held it last where that one died without letting go, else None. Raises DeployError at once when another
    process holds it, with user, host, pid, since when, command and message. The folder is made when it is missing;
    the file stays.
    """
    handle = _open(path)
    try:
        _lock(handle, path)
        dead = _read_note(handle)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(_own_note(command, message)).encode(), 0)
        try:
            yield _holder(dead) if dead else None
        except DeployError:
            # Refused in good order, so nothing is left for the next one to take up.
            os.ftruncate(handle, 0)
            raise
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def performer() -> tuple[str, str]:
    """User and host of this process, for notes about who did what."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return user, socket.gethostname()


def _own_note(command: str, message: str) -> dict[str, Any]:
    user, host = performer()
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": os.getpid(), "user": user, "host": host, "since": since, "command": command, "message": message}


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
            f"another deploy is at work here: {_present_holder(handle)}",
            why="two at once would start two engines on one port, or change files that the other one reads",
            fix="wait until it has ended, or stop it, and run again",
        ) from None
    except OSError as error:
        raise DeployError(
            f"the lock {path} cannot be taken: {error.strerror}",
            why="its file system does not support locks",
            fix="set DEPLOY_PROJECT to a folder on a local disk",
        ) from None


def _present_holder(handle: int) -> str:
    # The winner writes its note just after it has locked, so an empty file is worth a second look.
    for _attempt in range(_NOTE_ATTEMPTS):
        note = _read_note(handle)
        if note:
            return _holder(note)
        time.sleep(_NOTE_PAUSE_S)
    return "it has not said who it is"


def _read_note(handle: int) -> Mapping[str, Any]:
    try:
        note = json.loads(os.pread(handle, 4096, 0))
    except ValueError:
        return {}
    return note if isinstance(note, dict) and {"pid", "since", "command"} <= note.keys() else {}


def _holder(note: Mapping[str, Any]) -> str:
    who = f"{note['user']} on {note['host']}, " if note.get("user") and note.get("host") else ""
    said = f" ({note['message']})" if note.get("message") else ""
    return f"{who}pid {note['pid']}, since {note['since']}, {note['command']}{said}"
