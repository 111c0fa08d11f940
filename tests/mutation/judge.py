"""Judge all mutants of some folders by some tests, in minutes: in running code where that is exact, else anew."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import hypothesis
import pytest

from tests.mutation.bench import Measured, Order, OwnSession, SharedSession
from tests.mutation.catalogue import Module, Mutant
from tests.mutation.trial import BROKEN, KILLED, SURVIVED, CheapReports, Tell, Trial, run_all

OUTSIDE_TIERS = "not (docker or vllm or browser or slow or gpu)"
# A mutant that needs a session of its own meets the likeliest tests first, since collecting all takes longer than they.
FIRST_TESTS = 12


class Result(NamedTuple):
    """Each mutant with what became of it, in the order of the text; the tests that took part; and those that fail
    without any mutant and were left out."""

    trials: tuple[tuple[Mutant, Trial], ...]
    tests: tuple[Measured, ...]
    unfit: tuple[str, ...]

    @property
    def survivors(self) -> list[Mutant]:
        return [mutant for mutant, trial in self.trials if trial.survived]


def judge(modules: Sequence[Module], mutants: Sequence[Mutant], root: Path, tests: Sequence[str], jobs: int) -> Result:
    """Which of `mutants` survive the tests at the paths `tests` below `root`. The product must not be imported yet.

    RuntimeError where a mutant could not be judged.
    """
    by_name = {module.name: module for module in modules}
    inside = [mutant for mutant in mutants if mutant.scope or mutant.constant]
    anew = [mutant for mutant in mutants if not (mutant.scope or mutant.constant)]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # Their helper threads would not survive a fork.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    hypothesis.settings.register_profile(
        "mutation",
        deadline=None,
        database=None,
        derandomize=True,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with tempfile.TemporaryDirectory() as scratch:
        shared = SharedSession(modules, inside, jobs, Path(scratch))
        measured, trials, unfit, broken = _in_child(
            lambda: (_pytest(root, tests, shared), (shared.measured, shared.trials, shared.unfit, shared.broken))[1]
        )
        if len(trials) != len(inside):
            raise RuntimeError(f"not every mutant was judged: {broken or 'the tests could not be collected'}")
        order = Order(measured)

        def work(number: int, folder: Path, tell: Tell) -> int:
            mutant = anew[number]
            _mutate_imports(by_name[mutant.name], mutant, root)
            able = order.of(mutant)
            status = SURVIVED
            for some in (able[:FIRST_TESTS], able[FIRST_TESTS:]):
                if some and status == SURVIVED:
                    status = _own_session(root, measured, some, folder, tell)
            return status

        judged = [(inside[trial.mutant], trial) for trial in trials]
        judged += [(anew[trial.mutant], trial) for trial in run_all(range(len(anew)), work, jobs, Path(scratch))]
    judged.sort(key=lambda pair: (pair[0].name, pair[0].number))
    return Result(tuple(judged), tuple(measured), tuple(unfit))


def _pytest(root: Path, tests: Sequence[str], plugin: object) -> int:
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    os.chdir(root)
    options = ["-p", "_hypothesis_pytestplugin", "--hypothesis-profile=mutation", "--assert=plain", "--capture=no"]
    return pytest.main([*tests, f"--rootdir={root}", "-m", OUTSIDE_TIERS, *options], plugins=[plugin, CheapReports()])


def _own_session(root: Path, measured: Sequence[Measured], some: Sequence[int], folder: Path, tell: Tell) -> int:
    wanted = {measured[number].node: (number, measured[number].seconds) for number in some}
    session = OwnSession(wanted, folder, tell)
    code = _pytest(root, sorted({measured[number].file for number in some}), session)
    if session.status is None:
        # A module that cannot be imported any more stops the collection, or already the conftest files.
        return KILLED if code in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR) else BROKEN
    return session.status


def _in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns, computed in a child whose imports this process does not get."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "wb") as stream:
                pickle.dump(work(), stream)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


class _MutantLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


def _mutate_imports(module: Module, mutant: Mutant, root: Path) -> None:
    """Whoever imports the module from now on in this process gets the mutant."""
    name = ".".join(module.file.relative_to(root).with_suffix("").parts)
    loader = _MutantLoader(name, str(module.file), module.code(mutant))

    class Finder:
        @staticmethod
        def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
            found = fullname == name
            return importlib.util.spec_from_file_location(name, module.file, loader=loader) if found else None

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
