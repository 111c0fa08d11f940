"""How long tokens take: every stored time in a histogram, with the quantiles that the speed probe reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.campaign.overall import standing
from shardwright.campaign.rebalance.ab import SIDES
from shardwright.campaign.report.histogram import Arm, Axis, axis_over, picture, scale, shares
from shardwright.campaign.report.markup import Markup, absent, join, number, table, tag
from shardwright.campaign.report.stored import StoredRun
from shardwright.probes.speed.report import samples_from

_FIGURES = (
    ("Time to the first token", "decode", "ttft_ms"),
    ("Time to the first token of a long prompt", "prefill", "ttft_ms"),
    ("Between two tokens", "decode", "itl_ms"),
)
_QUANTILES = ("p50", "p95", "p99")


@dataclass(frozen=True)
class _Test:
    """One test of one arm: its row as reported, and its times, milliseconds; None where the trials are not stored."""

    side: str
    row: Mapping[str, Any]
    times: Mapping[str, tuple[float, ...]] | None


def latency(run: StoredRun) -> Markup:
    """Time to the first token and between tokens, for each test and number of streams; both arms on one axis."""
    tests = [test for side, arm in run.sides for test in _tests(side, arm)]
    if not tests:
        found = dict.fromkeys(standing(arm.report("speed")) for _, arm in run.sides)
        return absent(", ".join(found))
    figures = [drawn for figure in _FIGURES if (drawn := _figure(tests, *figure))]
    legend = _legend(bool(run.arms)) if figures else absent("no time is to be believed")
    return join((legend, *figures, tag("h3", "Rates"), _rates(tests, bool(run.arms))))


def _tests(side: str, run: StoredRun) -> list[_Test]:
    report = run.report("speed") or {}
    rows: Sequence[Mapping[str, Any]] = report.get("rows") or ()
    records = run.trials.get("speed")
    if not rows or not records:
        return [_Test(side, row, None) for row in rows]
    samples = samples_from(records, report["plan"])
    return [
        _Test(side, row, {"ttft_ms": found.ttft_ms, "itl_ms": found.itl_ms})
        for row, found in zip(rows, samples, strict=True)
    ]


def _figure(tests: Sequence[_Test], title: str, kind: str, name: str) -> Markup:
    """All tests of one kind below each other, on one axis."""
    shown = [test for test in tests if test.row["test"] == kind and test.row.get(f"{name}_p50") is not None]
    if not shown:
        return Markup("")
    axis = axis_over(value for test in shown if test.times for value in test.times[name])
    groups: dict[str, list[_Test]] = {}
    for test in shown:
        groups.setdefault(_test_name(test.row), []).append(test)
    rows = [_row(label, group, name, axis) for label, group in groups.items()]
    return tag(
        "figure",
        tag("figcaption", f"{title}, ms"),
        *rows,
        scale(axis) if axis else "",
        class_=f"latency{' two' if shown[0].side else ''}",
    )


def _row(label: str, tests: Sequence[_Test], name: str, axis: Axis | None) -> Markup:
    """One test: its name, its picture, and its quantiles in words."""
    columns = len(_QUANTILES) + 1 + bool(tests[0].side)
    drawn: object = ""
    if axis is not None and all(test.times and test.times[name] for test in tests):
        arms = {test.side: _arm(test, name, axis) for test in tests}
        sides = SIDES if tests[0].side else ("",)
        words = "; ".join(f"{test.side} {_words(test, name)}".lstrip() for test in tests)
        drawn = picture([arms.get(side) for side in sides], axis, f"{label}, ms: {words}")
    return tag(
        "div",
        tag("span", label, class_="what"),
        drawn,
        tag("div", *(_quantiles(test, name) for test in tests), class_="value", style=f"--columns:{columns}"),
        class_="row",
    )


def _arm(test: _Test, name: str, axis: Axis) -> Arm:
    assert test.times is not None
    marks = [axis.place(test.row[f"{name}_{quantile}"]) for quantile in _QUANTILES]
    return Arm(shares(test.times[name], axis), marks)


def _words(test: _Test, name: str) -> str:
    return ", ".join(f"{quantile} {value}" for quantile, value in _values(test, name))


def _quantiles(test: _Test, name: str) -> Markup:
    values = (tag("span", tag("span", quantile, class_="soft"), " ", value) for quantile, value in _values(test, name))
    return tag("div", *((tag("span", test.side, class_=f"side {test.side}"),) if test.side else ()), *values)


def _values(test: _Test, name: str) -> list[tuple[str, str]]:
    quantiles = [(quantile, number(test.row[f"{name}_{quantile}"], 1)) for quantile in _QUANTILES]
    return [*quantiles, ("n", number(test.row[f"{name}_n"]))]


def _legend(two: bool) -> Markup:
    arms = "Control stands above the line, the candidate hangs below it. " if two else ""
    told = (
        "Each bar is the share of all measured times that fall there, the highest one fills the height; the axis is "
        f"logarithmic. {arms}"
        "Lines: median (whole), p95 (dashed), p99 (dotted); below 100 values p99 is the largest one."
    )
    return tag("p", told, class_="soft")


def _test_name(row: Mapping[str, Any]) -> str:
    if row["test"] == "prefill":
        return f"prefill of {number(row['target_tokens'])}"
    return f"{row['prompt']} {row['sampler']}, {row['concurrency']} at once"


def _rates(tests: Sequence[_Test], two: bool) -> Markup:
    heads = ("test", "rounds", "tok/s", "step, ms", "acceptance length", "preemptions", "state")
    body = []
    for test in sorted(tests, key=_place_of(tests)):
        row = test.row
        body.append(
            (
                _test_name(row),
                *((test.side,) if two else ()),
                number(row["rounds"]),
                *(
                    "–" if value is None else number(value, digits)
                    for value, digits in ((row["tok_s"], 1), (row["step_ms"], 2), (row["accept_len"], 2))
                ),
                number(row["preemptions"]),
                row["status"],
            )
        )
    if not two:
        return table(heads, body, numeric=range(1, 6))
    return table((heads[0], "arm", *heads[1:]), body, numeric=range(2, 7))


def _place_of(tests: Sequence[_Test]) -> Callable[[_Test], int]:
    """So that both arms of a test stand below each other, in the order in which the tests were made."""
    names = list(dict.fromkeys(_test_name(test.row) for test in tests))
    return lambda test: names.index(_test_name(test.row))
