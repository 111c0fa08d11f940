"""The whole page: one HTML file without script and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.campaign.report.answers import degeneration, needles, probes
from shardwright.campaign.report.deployed import command, gates, proof
from shardwright.campaign.report.latency import latency
from shardwright.campaign.report.layers import memory, partition
from shardwright.campaign.report.markup import (
    Markup,
    absent,
    badge,
    bullets,
    contents,
    html,
    join,
    section,
    table,
    tag,
    tone,
)
from shardwright.campaign.report.stored import StoredRun
from shardwright.campaign.report.style import STYLE
from shardwright.campaign.report.summary import WARNINGS, facts_of, reasons_of, split_of, subject_of, verdict_of

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

Part = Callable[[StoredRun], Markup]
"""Shows a run, or both arms of a comparison."""


def _beside(build: Callable[[StoredRun, Sequence[StoredRun]], Markup]) -> Part:
    """The arms of a comparison side by side, or once where they are the same.

    `build` is given all runs of the page too, for a scale that they share.
    """

    def part(run: StoredRun) -> Markup:
        if not run.arms:
            return build(run, (run,))
        among = [arm for _, arm in run.arms]
        shown = [build(arm, among) for arm in among]
        if len(set(shown)) == 1:
            return join((shown[0], absent("The same in both arms.")))
        columns = (tag("div", tag("h3", side), content) for (side, _), content in zip(run.arms, shown, strict=True))
        return tag("div", *columns, class_="arms")

    return part


def _alone(build: Callable[[StoredRun], Markup]) -> Part:
    return _beside(lambda run, _: build(run))


_PARTS: tuple[tuple[str, Part], ...] = (
    ("Probes", probes),
    ("Memory", _beside(memory)),
    ("Partition", _alone(partition)),
    ("Needles", _alone(needles)),
    ("Degeneration", _beside(degeneration)),
    ("Latency", latency),
    ("Patch proof", _alone(proof)),
    ("Gates", _alone(gates)),
    ("Command", _alone(command)),
)


def html_page(run: StoredRun) -> str:
    """The report of a run or, with both arms side by side, of a comparison."""
    title = f"{subject_of(run)}: {verdict_of(run)}"
    parts = [(name, build(run)) for name, build in _PARTS]
    if run.arms and run.verdict:
        parts.insert(0, ("Control and candidate", comparison(run.verdict)))
    sections = [section(name, content) for name, content in parts]
    body = tag("main", _head(run), contents(name for name, _ in parts), *sections, _foot(run))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{html(title)}</title><style>{STYLE}</style></head>\n'
        f"<body>{body}</body></html>\n"
    )


def _head(run: StoredRun) -> Markup:
    verdict = verdict_of(run)
    manifest = run.manifest
    facts = {
        "made at": manifest.get("created_at", "unknown"),
        "instance": manifest.get("instance"),
        **({side: split_of(arm) for side, arm in run.arms} if run.arms else facts_of(run)),
        "by": f"{manifest['user']} on {manifest.get('host')}" if manifest.get("user") else None,
        "mode": run.verdict.get("mode") if run.verdict else None,
    }
    named = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items() if value]
    return tag(
        "header",
        tag("div", badge(verdict), tag("h1", subject_of(run)), class_="title"),
        _warning(run),
        bullets(reasons_of(run)),
        tag("dl", *named),
        class_=tone(verdict),
    )


def _warning(run: StoredRun) -> Markup:
    told = [
        f"{f'{side}: ' if side else ''}{WARNINGS[one.state]}"
        for side, one in (("", run), *run.arms)
        if one.state in WARNINGS
    ]
    return join(tag("p", line, class_="warning") for line in told)


def comparison(found: Mapping[str, Any]) -> Markup:
    """Every row of the comparison; one with a verdict decides, one without is only reported."""
    rows: Sequence[Mapping[str, Any]] = found.get("rows") or ()
    if not rows:
        return absent("nothing was compared")
    body = [
        (row["group"], row["metric"], *row["cells"], badge(row["verdict"] or "reported"), row["reason"]) for row in rows
    ]
    return table(("group", "metric", "control", "candidate", "verdict", "reason"), body)


def _foot(run: StoredRun) -> Markup:
    seal = f"sealed {run.seal}" if run.seal else "not sealed"
    return tag("footer", tag("p", f"{run.name}, {seal}, made by version {run.manifest.get('tool_version')}"))
