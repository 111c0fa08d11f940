"""Pytest plugins: measure which test runs which line, and judge mutants in that session or in sessions of their own."""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

from tests.mutation.catalogue import Module, Mutant
from tests.mutation.trial import KILLED, SURVIVED, Tell, Trial, own_folder, passes, run_all, survives

# What a test of other processes does; it would outlive the mutant or run without it.
LEAVES_PROCESS = frozenset(
    {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "socket.bind", "socket.connect"}
)
CLOCKS = frozenset({"process_time", "perf_counter", "monotonic"})


class Measured(NamedTuple):
    """One test: its seconds, and the lines of each module that it runs."""

    node: str
    file: str
    seconds: float
    lines: Mapping[str, frozenset[int]]


class Order:
    """Which tests can see a mutant, the likeliest to kill it first."""

    def __init__(self, tests: Sequence[Measured]) -> None:
        self._tests = tests
        # A test that only makes an object of a module runs none of its lines; others of its file do.
        self._files = {(name, test.file) for test in tests for name in test.lines}
        self._kills: dict[tuple[str, str], dict[int, int]] = {}
        runs: dict[tuple[str, int], int] = {}
        for test in tests:
            for name, lines in test.lines.items():
                for line in lines:
                    runs[name, line] = runs.get((name, line), 0) + 1
        # A test that runs what few others run was written for it.
        self._worth = [
            {
                name: sum(1 / runs[name, line] for line in lines) / (test.seconds + 0.005)
                for name, lines in test.lines.items()
            }
            for test in tests
        ]

    def of(self, mutant: Mutant) -> list[int]:
        """Numbers of tests."""
        by_scope = self._kills.get((mutant.name, mutant.scope or mutant.constant), {})
        by_module = self._kills.get((mutant.name, ""), {})
        able = [number for number, test in enumerate(self._tests) if self._sees(test, mutant)]

        def worth(number: int) -> tuple[int, int, float]:
            return -by_scope.get(number, 0), -by_module.get(number, 0), -self._worth[number].get(mutant.name, 0.0)

        return sorted(able, key=worth)

    def _sees(self, test: Measured, mutant: Mutant) -> bool:
        if not mutant.spots:
            return (mutant.name, test.file) in self._files
        lines = test.lines.get(mutant.name, frozenset())
        return any(line in lines for first, last in mutant.spots for line in range(first, last + 1))

    def note(self, mutant: Mutant, test: int) -> None:
        """Remember that a test killed a mutant."""
        for place in {mutant.scope or mutant.constant, ""}:
            kills = self._kills.setdefault((mutant.name, place), {})
            kills[test] = kills.get(test, 0) + 1


class SharedSession:
    """A plugin: all tests are measured once, then every mutant is put into the running code of a child."""

    def __init__(self, modules: Sequence[Module], mutants: Sequence[Mutant], jobs: int, scratch: Path) -> None:
        self._modules = {module.name: module for module in modules}
        self._mutants, self._jobs, self._scratch = mutants, jobs, scratch
        self.measured: list[Measured] = []
        self.trials: list[Trial] = []
        self.unfit: list[str] = []
        self.broken = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.unfit.append(report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        free_ports()
        items = self._measure(session.items)
        order = Order(self.measured)
        functions = _functions(self._modules.values())
        gc.collect()
        gc.freeze()

        def work(number: int, folder: Path, tell: Tell) -> int:
            mutant = self._mutants[number]
            able = order.of(mutant)
            if not able:
                return SURVIVED
            own_folder(session.config, folder)
            _put(mutant, self._modules[mutant.name], functions)
            return survives(((test, items[test], self.measured[test].seconds) for test in able), tell)

        try:
            for trial in run_all(range(len(self._mutants)), work, self._jobs, self._scratch):
                self.trials.append(trial)
                if not trial.survived and trial.test >= 0:
                    order.note(self._mutants[trial.mutant], trial.test)
        except RuntimeError as error:
            self.broken = str(error)
        return True

    def _measure(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        files = {str(module.file): name for name, module in self._modules.items()}
        fit = []
        for item in items:
            started = time.perf_counter()
            with _watched(files) as (lines, left):
                passed = passes(item)
            seconds = time.perf_counter() - started
            if left or _reads_a_clock(item):
                continue
            if not passed:
                self.unfit.append(item.nodeid)
                continue
            seen = {name: frozenset(found) for name, found in lines.items()}
            self.measured.append(Measured(item.nodeid, str(item.path), seconds, seen))
            fit.append(item)
        return fit


class OwnSession:
    """A plugin: some tests in an order of our own. `status` is None where they could not even be started."""

    def __init__(self, tests: Mapping[str, tuple[int, float]], folder: Path, tell: Tell) -> None:
        """`tests`: node to its number and usual seconds, in the order in which they run."""
        self._tests, self._folder, self._tell = tests, folder, tell
        self.status: int | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self.status = KILLED
            return True
        free_ports()
        own_folder(session.config, self._folder)
        items = {item.nodeid: item for item in session.items}
        tests = ((number, items[node], usual_s) for node, (number, usual_s) in self._tests.items())
        self.status = survives(tests, self._tell)
        return True


def _put(mutant: Mutant, module: Module, functions: Mapping[tuple[str, str], Sequence[FunctionType]]) -> None:
    if mutant.scope:
        code = _code_of(module.code(mutant), mutant.scope)
        for function in functions[mutant.name, mutant.scope]:
            if function.__code__.co_firstlineno == code.co_firstlineno:
                function.__code__ = code
        return
    owner = next(found for found in sys.modules.values() if getattr(found, "__file__", None) == str(module.file))
    exec(module.statement_code(mutant), vars(owner))


def _code_of(code: CodeType, scope: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == scope:
                return constant
            if scope.startswith(f"{constant.co_qualname}."):
                return _code_of(constant, scope)
    raise LookupError(scope)


def _functions(modules: Collection[Module]) -> dict[tuple[str, str], list[FunctionType]]:
    """All living functions of some modules, by module and qualified name."""
    names = {str(module.file): module.name for module in modules}
    found: dict[tuple[str, str], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename in names:
            found.setdefault((names[thing.__code__.co_filename], thing.__code__.co_qualname), []).append(thing)
    return found


_left_process: list[str] = []
_hooks: list[Any] = []


def _listen(event: str, _: object) -> None:
    if event in LEAVES_PROCESS:
        _left_process.append(event)


def free_ports() -> None:
    """Let every port be free in this process: tests that ask for the same one run at the same time elsewhere."""
    bind = socket.socket.bind

    def free(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[1]:
            return
        _left_process.append("a server")
        bind(self, address)

    socket.socket.bind = free  # type: ignore[method-assign]


@contextmanager
def _watched(files: Mapping[str, str]) -> Iterator[tuple[dict[str, set[int]], list[str]]]:
    """The lines of `files` (path to shown name) that run meanwhile, and what leaves this process."""
    if not _hooks:
        sys.addaudithook(_listen)
        _hooks.append(_listen)
    _left_process.clear()
    lines: dict[str, set[int]] = {}

    def enter(frame: FrameType, event: str, _: object) -> Any:
        name = files.get(frame.f_code.co_filename)
        if name is None:
            return None
        found = lines.setdefault(name, set())
        found.add(frame.f_lineno)

        def step(frame: FrameType, event: str, _: object) -> Any:
            found.add(frame.f_lineno)
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield lines, _left_process
    finally:
        sys.settrace(before)


def _reads_a_clock(item: pytest.Item) -> bool:
    function = getattr(item, "function", None)
    return function is not None and not CLOCKS.isdisjoint(function.__code__.co_names)
