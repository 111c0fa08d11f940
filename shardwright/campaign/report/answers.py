"""What the probes found: the list of them, needles as a map, degeneration as intervals, latency as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.campaign.overall import NOT_APPLICABLE
from shardwright.campaign.probe_table import PROBES
from shardwright.campaign.report.markup import (
    NOT_ASKED,
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
from shardwright.probes.needle.map import svg_map
from shardwright.probes.stats import clopper_pearson_upper

_DEGEN = ("degen", "degen-long")


def standing(report: Mapping[str, Any] | None) -> str:
    """A probe's verdict in one word or two; `not asked` and `not applicable` are kept apart."""
    if report is None:
        return NOT_ASKED
    if report["verdict"] == "SKIP":
        declared = any(str(line).startswith(NOT_APPLICABLE) for line in report.get("reasons", ()))
        return "not applicable" if declared else NOT_ASKED
    return str(report["verdict"])


def probes(run: StoredRun) -> Markup:
    """One line for each probe that there is, asked or not."""
    rows = []
    for name in dict.fromkeys((*(str(report["probe"]) for report in run.reports), *PROBES)):
        report = run.report(name)
        counts = [number(report[key]) for key in ("trials", "failures", "errors")] if report else ["–"] * 3
        reasons = bullets(report.get("reasons", ())) if report else ""
        rows.append((name, badge(standing(report)), *counts, reasons))
    return table(("probe", "verdict", "trials", "failures", "errors", "reasons"), rows, numeric=(2, 3, 4))


def needles(run: StoredRun) -> Markup:
    """Length by depth, one picture for all passes."""
    records = run.trials.get("needle", ())
    if not any(record["kind"] == "trial" for record in records):
        return absent(standing(run.report("needle")))
    report = run.report("needle") or {}
    bound = report.get("upper_bound")
    told = f"{report.get('failures', 0)} of {report.get('trials', 0)} lost" + (
        f", at most {percent(bound)} by the one-sided bound" if bound is not None else ""
    )
    return join((tag("p", told), tag("div", Markup(svg_map(records)), class_="picture", tabindex="0")))


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
    told = f"Black line: the rate. Bar: up to the one-sided bound. Full width: {percent(widest)}."
    return tag("p", told, class_="soft")


def latency(run: StoredRun, among: Sequence[StoredRun]) -> Markup:
    """Time to the first token and between tokens, for each test and number of streams: median, p95, p99.

    `among`: the runs whose bars share one scale.
    """
    rows = _speed_rows(run)
    if not rows:
        return absent(standing(run.report("speed")))
    parts: list[object] = []
    for title, test, name in _LATENCIES:
        shown = [row for row in rows if row["test"] == test and row.get(f"{name}_p50") is not None]
        every = (row for one in among for row in _speed_rows(one) if row["test"] == test)
        most = max((row[f"{name}_p99"] for row in every if row.get(f"{name}_p99") is not None), default=0.0)
        if shown and most:
            parts += [tag("h3", title), *(_quantiles(row, name, most) for row in shown)]
    told = "Bar: up to the median. Lines: median, p95, p99; below 100 values p99 is the largest one."
    return join((*parts, tag("p", told, class_="soft"), _rates(rows)))


# Prompts of thousands of tokens on a scale of their own, for the short ones would vanish beside them.
_LATENCIES = (
    ("Time to the first token, ms", "decode", "ttft_ms"),
    ("Time to the first token of a long prompt, ms", "prefill", "ttft_ms"),
    ("Between two tokens, ms", "decode", "itl_ms"),
)


def _speed_rows(run: StoredRun) -> Sequence[Mapping[str, Any]]:
    return (run.report("speed") or {}).get("rows") or []


def _test_name(row: Mapping[str, Any]) -> str:
    if row["test"] == "prefill":
        return f"prefill of {number(row['target_tokens'])}"
    return f"{row['prompt']} {row['sampler']}, {row['concurrency']} at once"


def _quantiles(row: Mapping[str, Any], name: str, most: float) -> Markup:
    values = [row[f"{name}_{quantile}"] for quantile in ("p50", "p95", "p99")]
    marks = [tag("span", class_="mark", style=f"left:{100 * value / most:.2f}%") for value in values]
    told = " / ".join(number(value, 1) for value in values) + f", n {row[f'{name}_n']}"
    fill = tag("span", class_="span", style=f"left:0;width:{100 * values[0] / most:.2f}%")
    return tag(
        "div",
        tag("span", _test_name(row), class_="what"),
        tag("span", fill, *marks, class_="track"),
        tag("span", told, class_="value"),
        class_="bar",
    )


def _rates(rows: Sequence[Mapping[str, Any]]) -> Markup:
    heads = ("test", "rounds", "tok/s", "step, ms", "acceptance length", "preemptions", "state")
    body = [
        (
            _test_name(row),
            number(row["rounds"]),
            number(row["tok_s"], 1),
            number(row["step_ms"], 2),
            number(row["accept_len"], 2),
            number(row["preemptions"]),
            row["status"],
        )
        for row in rows
    ]
    return table(heads, body, numeric=range(1, 6))
