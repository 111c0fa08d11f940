"""Lines of a text file that grows, is rotated, or is not there yet. Carriage returns of progress bars end lines too."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_POLL_S = 0.2
_CHUNK_BYTES = 256 * 1024


def read_tail(path: Path, tail: int | None = None) -> Iterator[str]:
    """The lines of the file as it is now, or its last `tail`; none when it is missing."""
    lines = tail_file(path, lambda: False)
    yield from deque(lines, maxlen=tail) if tail is not None else lines


def tail_file(path: Path, growing: Callable[[], bool], tail: int | None = None) -> Iterator[str]:
    """The lines from the beginning (or the last `tail` now there), then new ones for as long as `growing` says so.

    What was written until `growing` turned false is still read. A file that was replaced or cut short is read from its
    new beginning.
    """
    splitter = _Splitter()
    handle: BinaryIO | None = None
    backlog: deque[str] | None = deque(maxlen=tail) if tail is not None else None
    try:
        while True:
            # Asked before the read, so that the last lines of a process that ends in between are not lost.
            more = growing()
            handle = _current(path, handle, splitter)
            while handle is not None and (chunk := handle.read(_CHUNK_BYTES)):
                lines = splitter.feed(chunk)
                if backlog is not None:
                    backlog.extend(lines)
                else:
                    yield from lines
            if not more:
                break
            if backlog is not None:
                yield from backlog
                backlog = None
            time.sleep(_POLL_S)
        rest = splitter.rest()
        if backlog is not None:
            backlog.extend(rest)
            yield from backlog
        else:
            yield from rest
    finally:
        if handle is not None:
            handle.close()


class _Splitter:
    def __init__(self) -> None:
        self._partial = b""

    def feed(self, chunk: bytes) -> list[str]:
        text = (self._partial + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, self._partial = text.split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def rest(self) -> list[str]:
        rest, self._partial = self._partial, b""
        return [rest.decode(errors="replace")] if rest else []


def _current(path: Path, handle: BinaryIO | None, splitter: _Splitter) -> BinaryIO | None:
    """The open file that `path` names now."""
    try:
        named = path.stat()
    except OSError:
        return handle
    if handle is not None:
        opened = os.fstat(handle.fileno())
        if opened.st_ino == named.st_ino and opened.st_dev == named.st_dev:
            if named.st_size < handle.tell():
                splitter.rest()
                handle.seek(0)
            return handle
        if handle.read(1):
            handle.seek(-1, os.SEEK_CUR)
            return handle
        handle.close()
        splitter.rest()
    return path.open("rb")
