"""What the probes found: the list of them, needles as a map, degeneration as intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.campaign.overall import standing
from shardwright.campaign.probe_table import PROBES
from shardwright.campaign.report.markup import (
    Markup,
    absent,
    badge,
    bullets,
    join,
    number,
    percent,
    table,
    tag,
)
from shardwright.campaign.report.stored import StoredRun
from shardwright.probes.needle.map import MARKS, Grid, Mark, grids
from shardwright.probes.stats import clopper_pearson_upper

_DEGEN = ("degen", "degen-long")


def probes(run: StoredRun) -> Markup:
    """One line for each probe that there is, asked or not; both arms of a comparison beside each other."""
    sides = run.sides
    names = dict.fromkeys((*(str(report["probe"]) for _, arm in sides for report in arm.reports), *PROBES))
    body = []
    for name in names:
        found = [(side, arm.report(name)) for side, arm in sides]
        body.append((name, *(_asked(report) for _, report in found), _reasons(found)))
    return table(("probe", *(side or "verdict" for side, _ in sides), "reasons"), body)


def _asked(report: Mapping[str, Any] | None) -> Markup:
    return tag("span", tag("span", badge(standing(report))), tag("span", _counted(report)), class_="asked")


def _counted(report: Mapping[str, Any] | None) -> str:
    """Failures among the trials, and the requests that brought no answer where there are any."""
    if report is None or not (report["trials"] or report["errors"]):
        return ""
    told = f"{number(report['failures'])} of {number(report['trials'])} failed"
    return told + (f", {number(report['errors'])} errors" if report["errors"] else "")


def _reasons(found: Sequence[tuple[str, Mapping[str, Any] | None]]) -> Markup:
    """Each reason once, with the arm that gives it where the other does not."""
    given = [(side, str(line)) for side, report in found for line in (report or {}).get("reasons", ())]
    lines: dict[str, list[str]] = {}
    for side, line in given:
        lines.setdefault(line, []).append(side)
    shared = len(found)
    return bullets(line if len(sides) == shared else f"{sides[0]}: {line}" for line, sides in lines.items())


def needles(run: StoredRun) -> Markup:
    """Length by depth, a small table for each pass; a cell shows the worst answer of its place."""
    records = run.trials.get("needle", ())
    found = grids(records)
    if not found:
        return absent(standing(run.report("needle")))
    report = run.report("needle") or {}
    bound = report.get("upper_bound")
    told = f"{report.get('failures', 0)} of {report.get('trials', 0)} lost" + (
        f", at most {percent(bound)} by the one-sided bound" if bound is not None else ""
    )
    seen = {outcome for grid in found for outcome, _ in grid.cells.values()}
    legend = [
        tag("div", tag("span", mark.letter, class_="layer", style=_look(mark)), str(outcome))
        for outcome, mark in MARKS.items()
        if outcome in seen
    ]
    maps = tag("div", *map(_needle_map, found), class_="maps", tabindex="0")
    return join((tag("p", told), maps, tag("div", *legend, class_="legend")))


def _needle_map(grid: Grid) -> Markup:
    head = tag("tr", tag("th", "tokens", scope="col"), *(tag("th", f"{one} %", scope="col") for one in grid.depths))
    rows = [
        tag("tr", tag("th", number(length), scope="row"), *(_needle_cell(grid, length, depth) for depth in grid.depths))
        for length in grid.lengths
    ]
    return tag("table", tag("caption", f"{grid.name}, by depth"), tag("thead", head), tag("tbody", *rows), class_="map")


def _needle_cell(grid: Grid, length: int, depth: int) -> Markup:
    found = grid.cells.get((length, depth))
    if found is None:
        return tag("td")
    outcome, trial = found
    mark = MARKS[outcome]
    return tag("td", mark.letter, style=_look(mark), title=f"{trial}: {outcome}")


def _look(mark: Mark) -> str:
    return f"background:{mark.fill};color:{mark.ink}"


def degeneration(run: StoredRun, among: Sequence[StoredRun]) -> Markup:
    """Rate and one-sided Clopper-Pearson bound, for the whole, for its parts and for the control on file.

    `among`: the runs whose bars share one scale.
    """
    rows = _intervals(run)
    if not rows:
        return absent(standing(run.report("degen")))
    widest = max((bound for one in among for *_, bound in _intervals(one) if bound), default=1.0)
    controls = [(name, (run.report(name) or {}).get("control")) for name in _DEGEN]
    notes = [
        f"{name} against its control: Fisher one-sided p = {control['p_value']:.3g}"
        for name, control in controls
        if control and control["trials"]
    ]
    return join((*(_interval(*row, widest) for row in rows), _scale(widest), bullets(notes)))


def _intervals(run: StoredRun) -> list[tuple[str, int, int, float | None]]:
    """Label, failures, trials and upper bound of everything that was counted."""
    rows: list[tuple[str, int, int, float | None]] = []
    for name in _DEGEN:
        report = run.report(name)
        if report is None or not report["trials"]:
            continue
        rows.append((name, report["failures"], report["trials"], report.get("upper_bound")))
        for part, known in (("task", report.get("per_task")), ("concurrency", report.get("per_concurrency"))):
            rows += [(f"{part} {key}", r["failures"], r["trials"], r.get("upper_bound")) for key, r in _parts(known)]
        control = report.get("control")
        if control and control["trials"]:
            bound = clopper_pearson_upper(control["failures"], control["trials"], report.get("confidence", 0.95))
            rows.append((f"{name}, control", control["failures"], control["trials"], bound))
    return rows


def _parts(known: Mapping[str, Mapping[str, Any]] | None) -> list[tuple[str, Mapping[str, Any]]]:
    """The parts of a count where there are several; one part is the whole again."""
    return list(known.items()) if known and len(known) > 1 else []


def _interval(label: str, failures: int, trials: int, bound: float | None, widest: float) -> Markup:
    rate = failures / trials
    track = [tag("span", class_="mark", style=f"left:{100 * min(rate / widest, 1):.2f}%")]
    if bound is not None:
        track.insert(0, tag("span", class_="span", style=f"left:0;width:{100 * bound / widest:.2f}%"))
    told = f"{failures}/{trials}, at most {percent(bound)}"
    return tag(
        "div",
        tag("span", label, class_="what"),
        tag("span", *track, class_="track"),
        tag("span", told, class_="value"),
        class_="bar",
    )


def _scale(widest: float) -> Markup:
    told = f"Line: the rate. Bar: up to the one-sided bound. Full width: {percent(widest)}."
    return tag("p", told, class_="soft")
