"""Following a log in the background: absent logs, reopened logs, and runtimes that fail."""

from __future__ import annotations

from collections.abc import Iterator

from runtime_samples import eventually

from shardwright.errors import DeployError
from shardwright.runtime.follow import LogFollower


class Reopened:
    """A log that every opening reads from its beginning, as after a restart of a container."""

    def __init__(self, *readings: list[str] | Exception) -> None:
        self._readings = list(readings)

    def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        assert follow
        reading = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(reading, Exception):
            raise reading
        return iter(reading)


def gathered(follower: LogFollower, count: int) -> list[str]:
    lines: list[str] = []

    def enough() -> bool:
        lines.extend(follower.new_lines())
        return len(lines) >= count

    eventually(enough)
    follower.close()
    return lines


def test_a_reopened_log_gives_each_line_once() -> None:
    follower = LogFollower(Reopened(["one", "two"], ["one", "two", "three"]), "quick")
    assert gathered(follower, 3) == ["one", "two", "three"]


def test_a_log_that_is_not_there_yet_is_tried_again() -> None:
    follower = LogFollower(Reopened(DeployError("there is no engine quick"), OSError("gone"), ["one"]), "quick")
    assert gathered(follower, 1) == ["one"]


def test_a_log_that_began_anew_is_read_from_there() -> None:
    follower = LogFollower(Reopened(["one", "two"], [], ["three"]), "quick")
    assert gathered(follower, 3) == ["one", "two", "three"]


def test_looking_for_lines_never_waits() -> None:
    follower = LogFollower(Reopened([]), "quick")
    assert follower.new_lines() == []
    follower.close()
