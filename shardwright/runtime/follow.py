"""The new lines of an engine's log, whenever one asks, while a thread of its own reads the log."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Protocol

from shardwright.errors import DeployError

_REOPEN_S = 0.5


class LogSource(Protocol):
    """Where the wait loop takes log lines from."""

    def new_lines(self) -> list[str]:
        """The lines since the last call; never waits."""

    def close(self) -> None:
        """No more lines are wanted."""


class FollowableLogs(Protocol):
    """The part of a runtime that is followed."""

    def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]: ...


class LogFollower:
    """Follows the log of one engine from its beginning; one that is not there yet, ends or begins anew is reopened."""

    def __init__(self, runtime: FollowableLogs, name: str) -> None:
        self._runtime = runtime
        self._name = name
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._closed = Event()
        # A daemon thread: the runtime may block in a read that nobody can interrupt, and that must not hold the exit.
        Thread(target=self._follow, name=f"log of {name}", daemon=True).start()

    def new_lines(self) -> list[str]:
        lines = []
        while True:
            try:
                lines.append(self._lines.get_nowait())
            except Empty:
                return lines

    def close(self) -> None:
        self._closed.set()

    def _follow(self) -> None:
        seen = 0
        while not self._closed.is_set():
            seen = self._read_from(seen)
            self._closed.wait(_REOPEN_S)

    def _read_from(self, seen: int) -> int:
        position = 0
        try:
            for line in self._runtime.logs(self._name, follow=True):
                if self._closed.is_set():
                    break
                position += 1
                if position > seen:
                    self._lines.put(line)
        except (DeployError, OSError):
            return seen
        # A log that is shorter than what was read has begun anew.
        return position
