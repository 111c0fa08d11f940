"""Content and identity of files, as the process that asks sees them.

A script of its own, sent into a container with `python3 -c`; it imports nothing of ours. Its argument is a JSON map of
`paths` to look at, `folders` to search beside the interpreter's own, and the time `since` when; its last line of output
is MARK and a JSON map of `files` and of code that was `changed` since. Docker's archive would not do: it mounts the
sources anew, and so shows a replaced host file that the container does not see. Nor would its list of changes, which
reads the whole image.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

MARK = "shardwright-files "
MOST_BYTES = 256 << 20
"""Larger files are told apart by their inode alone, as folders are."""

_CODE = (".py", ".so", ".pth")


def file_state(path: str) -> tuple[str | None, int | None, float, float]:
    """sha256 (None: nothing there; empty: a folder or too large), inode, time of the last write and last change.

    A link counts as what it points to, and as changed when it was made to point there.
    """
    try:
        status = Path(path).stat()
        content = ""
        if stat.S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES:
            content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None, None, 0.0, 0.0
    return content, status.st_ino, status.st_mtime, max(status.st_ctime, _changed_at(path))


def changed_code(packages: Iterable[str], programs: Iterable[str], since: float) -> Iterator[str]:
    """Modules, libraries and programs that were made or changed after `since` (unix seconds), and engine files gone.

    What a container has from its image was last changed before the container was made.
    """
    for folder in _existing(packages):
        for path in _below(folder):
            if path.endswith(_CODE) and _changed_at(path) > since:
                yield path
        yield from _gone(folder, since)
    for folder in _existing(programs):
        yield from (entry.path for entry in os.scandir(folder) if _changed_at(entry.path) > since)


def _existing(folders: Iterable[str]) -> list[str]:
    """Each once, however many links lead to it."""
    return sorted({os.path.realpath(folder) for folder in folders if Path(folder).is_dir()})


def _below(folder: str) -> Iterator[str]:
    for parent, _folders, names in os.walk(folder):
        yield from (f"{parent}/{name}" for name in names)


def _changed_at(path: str) -> float:
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0


def _gone(folder: str, since: float) -> Iterator[str]:
    """Files that the engine's installation lists, but that are no more, where their folder was changed later."""
    for record in Path(folder).glob("*.dist-info/RECORD"):
        text = record.read_text(encoding="utf-8", errors="replace")
        if "vllm/__init__.py," not in text:
            continue
        for row in csv.reader(text.splitlines()):
            path = f"{folder}/{row[0]}" if row else ""
            if path.endswith(_CODE) and not os.path.lexists(path) and _changed_at(_nearest_folder(path)) > since:
                yield path


def _nearest_folder(path: str) -> str:
    return next(str(parent) for parent in Path(path).parents if parent.is_dir())


def look(paths: Iterable[str], folders: Iterable[str], since: float) -> dict[str, object]:
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    programs = [path for path in os.environ.get("PATH", "").split(os.pathsep) if path]
    changed = changed_code((*packages, *folders), programs, since)
    return {
        "files": {path: file_state(path) for path in paths},
        "changed": {path: file_state(path) for path in changed},
    }


if __name__ == "__main__":
    sys.stdout.write(f"\n{MARK}{json.dumps(look(**json.loads(sys.argv[1])))}\n")
