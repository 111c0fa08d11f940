from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from shardwright.cli.main import run as deploy
from shardwright.probes.faulty.faults import FAULTS
from shardwright.probes.selftest import arms as selftest_arms
from shardwright.probes.selftest.arms import ARMS, Observed, observe
from shardwright.probes.selftest.run import Cell, is_right, matrix, planned_cells, run_selftest
from shardwright.probes.stats import clopper_pearson_upper

ROOT = Path(__file__).resolve().parents[3]
BEGIN, END = "<!-- selftest: begin -->\n", "\n<!-- selftest: end -->"
_SLOW_ONES = {"deep-stall", "abort-leak"}
_SEEDS = 3
_AT_ONCE = 4
"""Servers beside each other: most of their time is waiting for what they pace."""


def cells_of(*probes: str) -> list[tuple[str, str, str]]:
    return [cell for cell in planned_cells(probes) if cell[1] not in _SLOW_ONES]


def wrong(cells: list[tuple[str, str, str]]) -> list[str]:
    return said_wrong(run_selftest(cells).cells)


def said_wrong(cells: Iterable[Cell]) -> list[str]:
    return [f"{c.probe} on {c.mode}: expected {c.expected}, saw {c.observed}" for c in cells if mistakes(c)]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(_AT_ONCE, mp_context=get_context("spawn")) as workers:
        yield workers


def side_by_side(pool: ProcessPoolExecutor, cells: list[tuple[str, str, str]], seeds: int) -> list[Cell]:
    """As `run_selftest`, all servers of all cells in a pool."""
    runs = [(cell, [pool.submit(observe, cell[0], cell[1], seed) for seed in range(1, seeds + 1)]) for cell in cells]
    return [Cell(*cell, tuple(run.result() for run in started)) for cell, started in runs]


def mistakes(cell: Cell) -> int:
    """Runs that came out wrong. On a busy host speed rightly leaves open what it decides on a quiet one."""
    seen = [cell.observed[seed - 1].verdict for seed in cell.wrong_seeds]
    return len(seen) - (seen.count("INCONCLUSIVE") if cell.probe == "speed" else 0)


def test_smoke_finds_its_faults_and_nothing_else() -> None:
    assert wrong(cells_of("smoke")) == []


def test_a_probe_that_finds_nothing_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = selftest_arms.Arm(lambda *_: Observed("PASS", ("OK",)))
    monkeypatch.setattr(selftest_arms, "ARMS", {**ARMS, "smoke": blind})
    result = run_selftest(planned_cells(["smoke"], ["garbled", "healthy"]))
    assert [(cell.mode, cell.right) for cell in result.cells] == [("healthy", True), ("garbled", False)]
    assert (result.verdict, result.exit_code) == ("FAIL", 2)


def test_a_probe_that_always_fails_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    alarmed = selftest_arms.Arm(lambda *_: Observed("FAIL", ("no-replacement-character",)))
    monkeypatch.setattr(selftest_arms, "ARMS", {**ARMS, "smoke": alarmed})
    result = run_selftest(planned_cells(["smoke"], ["garbled", "healthy"]))
    assert [(cell.mode, cell.right) for cell in result.cells] == [("healthy", False), ("garbled", True)]


@pytest.mark.parametrize(
    ("expected", "verdict", "seen", "right"),
    [
        ("FAIL A|B", "FAIL", ("B", "C"), True),
        ("FAIL A|B", "FAIL", ("C",), False),
        ("FAIL A|B", "PASS", ("A",), False),
        ("FAULT|INCONCLUSIVE", "INCONCLUSIVE", (), True),
        ("PASS", "FAULT", (), False),
    ],
)
def test_the_right_verdict_for_the_wrong_reason_is_not_right(
    expected: str, verdict: str, seen: tuple[str, ...], right: bool
) -> None:
    assert is_right(expected, Observed(verdict, seen)) is right


def test_every_expected_probe_exists_and_every_probe_has_a_fault_it_must_fail_on() -> None:
    assert {probe for fault in FAULTS for probe in fault.expected} == set(ARMS)
    for probe in ARMS:
        assert any(fault.expected.get(probe, "PASS").startswith("FAIL") for fault in FAULTS), probe


def test_the_docs_hold_the_matrix() -> None:
    page = (ROOT / "docs" / "probes.md").read_text()
    assert page.count(BEGIN) == page.count(END) == 1
    assert page.split(BEGIN)[1].split(END)[0] == matrix(), "write it anew: deploy probe selftest --list"


def test_the_command_prints_cells_and_exits_by_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy(["probe", "selftest", "--probe", "smoke", "--fault", "garbled"]) == 0
    assert "PASS: 1 of 1 cells as expected" in capsys.readouterr().out
    assert deploy(["probe", "selftest", "--probe", "smoke", "--fault", "wrong-usage", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["seeds"][0]["verdict"] == "FAIL"
    assert deploy(["probe", "selftest", "--list"]) == 0
    assert capsys.readouterr().out.strip() == matrix()
    assert deploy(["probe", "selftest", "--fault", "gremlins"]) == 64
    assert deploy(["probe", "selftest", "--probe", "gremlins"]) == 64


@pytest.mark.slow
@pytest.mark.parametrize("probe", ARMS)
def test_every_probe_is_right_on_every_server_with_several_seeds(probe: str, pool: ProcessPoolExecutor) -> None:
    assert said_wrong(side_by_side(pool, planned_cells([probe]), _SEEDS)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("probe", "fault"),
    [
        ("degen", "stale-index"),
        ("needle", "topk-cliff"),
        ("quality", "lost-brace"),
        ("parity", "stale-index"),
        ("repeat", "topk-race"),
        ("speed", "salt-ignored"),
    ],
)
def test_twenty_healthy_and_twenty_faulty_servers_are_told_apart(
    probe: str, fault: str, pool: ProcessPoolExecutor
) -> None:
    cells = planned_cells([probe], ["healthy", fault])
    assert [cell[1] for cell in cells] == ["healthy", fault]
    for cell in side_by_side(pool, cells, 20):
        wrong_ones = mistakes(cell)
        assert (wrong_ones, clopper_pearson_upper(wrong_ones, 20) < 0.14) == (0, True), cell
