"""Do the probes find what they exist for? Each against a healthy server and against each of its faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shardwright.errors import ExitCode, UsageError
from shardwright.probes.faulty.faults import FAULTS
from shardwright.probes.selftest.arms import ARMS, HEALTHY, Observed, observe


@dataclass(frozen=True)
class Cell:
    """One probe against one server, over all seeds. `expected` is a verdict, then the classes of which one is seen."""

    probe: str
    mode: str
    expected: str
    observed: tuple[Observed, ...]

    @property
    def right(self) -> bool:
        return all(is_right(self.expected, one) for one in self.observed)

    @property
    def wrong_seeds(self) -> tuple[int, ...]:
        """Seeds, from 1, with which the probe said something else."""
        return tuple(seed for seed, one in enumerate(self.observed, 1) if not is_right(self.expected, one))


@dataclass(frozen=True)
class SelfTest:
    """All cells that were run."""

    cells: tuple[Cell, ...]

    @property
    def verdict(self) -> Literal["PASS", "FAIL"]:
        return "PASS" if all(cell.right for cell in self.cells) else "FAIL"

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.OK if self.verdict == "PASS" else ExitCode.DRIFT

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "verdict": self.verdict,
            "cells": [
                {
                    "probe": cell.probe,
                    "mode": cell.mode,
                    "expected": cell.expected,
                    "right": cell.right,
                    "seeds": [
                        {"verdict": one.verdict, "seen": list(one.seen), "reasons": list(one.reasons)}
                        for one in cell.observed
                    ],
                }
                for cell in self.cells
            ],
        }


def is_right(expected: str, observed: Observed) -> bool:
    """Whether a verdict and one of the wanted classes were seen; without classes the verdict alone counts."""
    verdicts, _, classes = expected.partition(" ")
    if observed.verdict not in verdicts.split("|"):
        return False
    return not classes or not set(classes.split("|")).isdisjoint(observed.seen)


def planned_cells(probes: Sequence[str] = (), faults: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """`(probe, mode, expected)` of each cell; healthy first. Raises UsageError for a name that does not exist."""
    known = {fault.id for fault in FAULTS}
    for name in faults:
        if name not in known | {HEALTHY}:
            raise UsageError(f"there is no fault {name!r}", fix="deploy probe selftest --list names them")
    for name in probes:
        if name not in ARMS:
            raise UsageError(f"the self-test has no probe {name!r}", fix=f"one of {', '.join(ARMS)}")
    wanted = tuple(probes) or tuple(ARMS)
    cells = [(probe, HEALTHY, "PASS") for probe in wanted if not faults or HEALTHY in faults]
    for fault in FAULTS:
        if not faults or fault.id in faults:
            cells += [(probe, fault.id, fault.expected[probe]) for probe in wanted if probe in fault.expected]
    return cells


def run_selftest(
    cells: Iterable[tuple[str, str, str]], seeds: int = 1, on_cell: Callable[[Cell], None] | None = None
) -> SelfTest:
    """Run every cell with seeds 1 to `seeds`."""
    done = []
    for probe, mode, expected in cells:
        cell = Cell(probe, mode, expected, tuple(observe(probe, mode, seed) for seed in range(1, seeds + 1)))
        done.append(cell)
        if on_cell is not None:
            on_cell(cell)
    return SelfTest(tuple(done))


def matrix() -> str:
    """The table of probes and faults as Markdown; what it says is what the self-test holds the probes to."""
    probes = list(dict.fromkeys(probe for fault in FAULTS for probe in fault.expected))
    probes.sort(key=lambda probe: list(ARMS).index(probe) if probe in ARMS else len(ARMS))
    head = f"| fault | what it does | seen in | {' | '.join(probes)} |"
    rows = [head, f"|{'---|' * (3 + len(probes))}", f"| `healthy` | none | | {' | '.join('PASS' for _ in probes)} |"]
    for fault in FAULTS:
        outcomes = (_shown(fault.expected.get(probe, "")) for probe in probes)
        rows.append(f"| `{fault.id}` | {fault.does} | {fault.seen} | {' | '.join(outcomes)} |")
    return "\n".join(rows)


def _shown(expected: str) -> str:
    return expected.replace("|", " or ")
