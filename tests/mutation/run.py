"""Mutation test of the gates and the planner by their unit tests.

usage: python tests/mutation/run.py [--module gates/pool.py] [--list]

exit status: 0 every mutant was killed or is listed as equivalent, 1 some survived or an entry is stale, 4 the tests
could not be run
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not the folder of this file: its modules are imported by their full names.
sys.path[0] = str(ROOT)

from tests.mutation.catalogue import modules  # noqa: E402
from tests.mutation.equivalents import read_equivalents, stale  # noqa: E402
from tests.mutation.judge import Result, judge  # noqa: E402

# Of the tests of odd tensor parallelism only those of its gate and its plan: the others import a lot and reach neither.
TESTS = [
    *(f"tests/unit/{name}" for name in ("gates", "gates_full", "plan", "planning", "cases")),
    *(f"tests/unit/vtp/test_{name}.py" for name in ("virtual_tp_gate", "vtp_plan", "vtp_storage_units")),
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--module", action="append", help="only this one, such as gates/pool.py; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the mutants and judge none")
    parser.add_argument("--keys", action="store_true", help="print mutants as the list of equivalent ones names them")
    parser.add_argument(
        "--slowest", type=int, default=0, metavar="N", help="print also the N mutants that took longest"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--root", type=Path, default=ROOT, help="another project than this one")
    parser.add_argument("--package", default="shardwright")
    parser.add_argument("--folder", action="append", help="a folder of the package; gates and plan")
    parser.add_argument("--tests", action="append", help="a folder or file of unit tests, from the root")
    parser.add_argument("--equivalent", type=Path, default=Path(__file__).with_name("equivalent.txt"))
    return parser.parse_args()


def main() -> int:
    given, started = arguments(), time.perf_counter()
    tests = given.tests or TESTS
    found = modules(
        given.root / given.package, given.folder or ("gates", "plan"), [given.root / test for test in tests]
    )
    chosen = [module for module in found if not given.module or module.name in given.module]
    mutants = [mutant for module in chosen for mutant in module.mutants]
    if given.list:
        print(*(mutant.key if given.keys else mutant for mutant in mutants), sep="\n")
        return 0
    try:
        result = judge(found, mutants, given.root, tests, given.jobs)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 4
    if not result.tests:
        print("no test passes without a mutant", *result.unfit, sep="\n", file=sys.stderr)
        return 4
    equivalents = read_equivalents(given.equivalent)
    survivors = [mutant for mutant in result.survivors if mutant.key not in equivalents]
    # Without --module an entry may also be of a module that is gone.
    entries = [key for key in equivalents if not given.module or key.startswith(tuple(given.module))]
    outdated = stale(entries, mutants, result.survivors)
    report(result, given.slowest)
    for mutant in survivors:
        print(mutant.key if given.keys else mutant)
    for key in outdated:
        print(f"{given.equivalent.name}: no such mutant survives any more: {key}")
    killed = len(mutants) - len(result.survivors)
    print(
        f"{len(mutants)} mutants, {killed} killed, {len(result.survivors) - len(survivors)} equivalent, "
        f"{len(survivors)} survived; {len(result.tests)} tests, {time.perf_counter() - started:.0f} s"
    )
    return 1 if survivors or outdated else 0


def report(result: Result, slowest: int) -> None:
    for test in result.unfit:
        print(f"left out, since it fails without a mutant: {test}")
    for mutant, trial in sorted(result.trials, key=lambda pair: -pair[1].seconds)[:slowest]:
        print(f"{trial.seconds:.2f} s, {'survived' if trial.survived else result.tests[trial.test].node}: {mutant}")


if __name__ == "__main__":
    sys.exit(main())
