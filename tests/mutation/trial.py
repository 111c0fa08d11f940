"""Run collected tests until one fails, each mutant in a forked child that dies with it."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from _pytest.tmpdir import TempPathFactory

# Exit statuses of a child. What is neither, and no death by a signal, is a fault of this tool and no verdict.
SURVIVED, KILLED, BROKEN = 0, 1, 3
# An endless loop ends after this much processor time; a test may take this many times what it usually takes.
LEAST_TIME_S, TIMES = 2.0, 20.0
WALL_TIME_S = 120
EXTRA_MEMORY_BYTES = 4 << 30

Tell = Callable[[int], None]
Work = Callable[[int, Path, Tell], int]
"""Judge the mutant of a number, with a folder of one's own, telling the number of each test; gives the exit status."""


class Trial(NamedTuple):
    """What became of one mutant. `test` is the number of the test that ran last, -1 where none did."""

    mutant: int
    survived: bool
    test: int
    seconds: float


class CheapReports:
    """A pytest plugin: reports without tracebacks, since nobody reads how a mutant died."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
        outcome = "passed"
        if call.excinfo is not None:
            outcome = "skipped" if call.excinfo.errisinstance(pytest.skip.Exception) else "failed"
        return pytest.TestReport(item.nodeid, item.location, {}, outcome, None, call.when)  # type: ignore[arg-type]


def passes(item: pytest.Item) -> bool:
    """Whether a test passes; an exit of the whole session counts as a failure."""
    try:
        return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))
    except BaseException:
        return False


def survives(tests: Iterable[tuple[int, pytest.Item, float]], tell: Tell) -> int:
    """Whether all tests pass (number, item, usual seconds); a test that runs far too long ends this process."""
    for number, item, usual_s in tests:
        tell(number)
        signal.setitimer(signal.ITIMER_PROF, LEAST_TIME_S + TIMES * usual_s)
        if not passes(item):
            return KILLED
    return SURVIVED


def own_folder(config: pytest.Config, folder: Path) -> None:
    """Give the tests of this process temporary folders that no other process makes."""
    config.option.basetemp = str(folder)
    config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]


def run_all(mutants: Sequence[int], work: Work, jobs: int, scratch: Path) -> Iterator[Trial]:
    """Judge each mutant in a child of its own, `jobs` at a time."""
    notes = mmap.mmap(-1, 4 * jobs)
    lanes = list(range(jobs))
    running: dict[int, tuple[int, int, float]] = {}
    waiting = list(mutants)[::-1]
    while waiting or running:
        while waiting and lanes:
            lane, mutant = lanes.pop(), waiting.pop()
            struct.pack_into("i", notes, 4 * lane, -1)
            child = _start(work, mutant, scratch, notes, lane)
            running[child] = (mutant, lane, time.perf_counter())
        child, status = os.wait()
        mutant, lane, started = running.pop(child)
        lanes.append(lane)
        (test,) = struct.unpack_from("i", notes, 4 * lane)
        verdict = os.WEXITSTATUS(status) if os.WIFEXITED(status) else KILLED
        if verdict not in (SURVIVED, KILLED):
            raise RuntimeError(f"mutant {mutant} could not be judged: {_error_file(scratch, lane).read_text()}")
        yield Trial(mutant, verdict == SURVIVED, test, time.perf_counter() - started)


def _start(work: Work, mutant: int, scratch: Path, notes: mmap.mmap, lane: int) -> int:
    child = os.fork()
    if child:
        return child
    status = BROKEN
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY_BYTES, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_REAL, WALL_TIME_S)
        status = work(mutant, scratch / f"lane{lane}", lambda test: struct.pack_into("i", notes, 4 * lane, test))
    except BaseException:
        _error_file(scratch, lane).write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _error_file(scratch: Path, lane: int) -> Path:
    return scratch / f"lane{lane}.error"
