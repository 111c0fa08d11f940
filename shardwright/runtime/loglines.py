"""Engine log lines taken apart, and the first traceback in a log; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COMPOSE = re.compile(r"^[\w.-]+\s+\| ")
_WORKER = re.compile(r"^\((?P<worker>[A-Za-z]\w*(?: [\w=]+)*? pid=\d+(?:, ip=[\d.]+)?)\) ?")
_RANK = re.compile(r"^\[(?P<worker>rank\d+)\]: ?")
_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::\s+| (?:\d{2}-\d{2} \d{2}:\d{2}:\d{2} )?\[[^\]]+:\d+\] ?)"
)
_TRACEBACK = "Traceback (most recent call last):"
_QUIET = frozenset({"DEBUG", "INFO", "WARNING"})
_MAX_TRACEBACK_LINES = 400


@dataclass(frozen=True)
class LogLine:
    """One line: `worker` as the engine tags it (`Worker_PP1 pid=12`, empty without a tag), `level` (empty when the
    line has none, as continuation lines do), and the bare `message`."""

    worker: str
    level: str
    message: str


def parse_line(raw: str) -> LogLine:
    """Strip colours and the prefixes of compose, worker and logger from one line."""
    # A progress bar overwrites itself: what stands last is what one would see.
    shown = raw.rstrip("\r\n").rpartition("\r")[2]
    text = _COMPOSE.sub("", _ANSI.sub("", shown), count=1)
    worker = ""
    tag = _WORKER.match(text) or _RANK.match(text)
    if tag:
        worker, text = tag["worker"], text[tag.end() :]
    level = _LEVEL.match(text)
    if level is None:
        return LogLine(worker, "", text)
    return LogLine(worker, level["level"], text[level.end() :])


@dataclass
class _Open:
    level: str
    lines: list[str]
    raised: bool = False
    """The line that names the exception has been read; indented lines after it still belong to it."""


@dataclass(frozen=True)
class FirstTraceback:
    """The root cause as the log shows it; workers die of it first, and the processes above them of its echo."""

    worker: str
    lines: tuple[str, ...]

    @property
    def error(self) -> str:
        """The line that names the exception, with what follows it."""
        start = next((i for i, line in enumerate(self.lines[1:], 1) if not line.startswith(" ")), None)
        return " ".join(line.strip() for line in self.lines[start:]) if start is not None else self.lines[-1].strip()

    def excerpt(self, frames: int = 3) -> tuple[str, ...]:
        """The last `frames` frames and the exception, with a note of how many frames are left out."""
        starts = [i for i, line in enumerate(self.lines) if line.startswith("  File ")]
        if len(starts) <= frames:
            return self.lines
        left_out = len(starts) - frames
        return (self.lines[0], f"  ... {left_out} frames left out ...", *self.lines[starts[-frames] :])


def first_traceback(lines: Iterable[str]) -> FirstTraceback | None:
    """The traceback that was begun first, put together per worker, since the lines of several workers interleave.

    Tracebacks that were only logged as a warning or below do not count: the engine went on after them.
    """
    order: list[str] = []
    begun: dict[str, _Open] = {}
    for raw in lines:
        line = parse_line(raw)
        current = begun.get(line.worker)
        if current is None:
            if line.message.rstrip().endswith(_TRACEBACK) and line.level not in _QUIET:
                begun[line.worker] = _Open(line.level, [_TRACEBACK])
                order.append(line.worker)
            continue
        if line.level != current.level:
            continue
        if not _belongs(current, line.message):
            if line.worker == order[0]:
                break
            continue
        current.lines.append(line.message.rstrip())
        current.raised = current.raised or not line.message.startswith(" ")
    if not order:
        return None
    found = begun[order[0]].lines
    while len(found) > 1 and not found[-1]:
        found.pop()
    return FirstTraceback(order[0], tuple(found))


def _belongs(current: _Open, message: str) -> bool:
    if len(current.lines) >= _MAX_TRACEBACK_LINES:
        return False
    if current.raised:
        return message.startswith(" ")
    return bool(message.strip()) and not message.startswith("Traceback ")
