"""The whole page: one HTML file without script and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.campaign.report.answers import degeneration, latency, needles, probes
from shardwright.campaign.report.deployed import command, gates, proof
from shardwright.campaign.report.layers import memory, partition
from shardwright.campaign.report.markup import (
    Markup,
    absent,
    badge,
    bullets,
    html,
    join,
    section,
    table,
    tag,
    tone,
)
from shardwright.campaign.report.stored import StoredRun
from shardwright.campaign.report.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

Part = Callable[[StoredRun, Sequence[StoredRun]], Markup]
"""Shows one run; given all runs of the page too, for a scale that they share."""


def _alone(build: Callable[[StoredRun], Markup]) -> Part:
    return lambda run, _: build(run)


_PARTS: tuple[tuple[str, Part], ...] = (
    ("Probes", _alone(probes)),
    ("Memory", memory),
    ("Partition", _alone(partition)),
    ("Needles", _alone(needles)),
    ("Degeneration", degeneration),
    ("Latency", latency),
    ("Patch proof", _alone(proof)),
    ("Gates", _alone(gates)),
    ("Command", _alone(command)),
)


def html_page(run: StoredRun) -> str:
    """The report of a run or, with both arms side by side, of a comparison."""
    title = f"{run.manifest['layout']}, {'comparison' if run.arms else run.manifest['arm']}: {verdict_of(run)}"
    sections = [section(name, _arms(run, build)) for name, build in _PARTS]
    compared = [section("Control and candidate", comparison(run.verdict))] if run.arms and run.verdict else []
    body = tag("main", _head(run), *compared, *sections, _foot(run))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{html(title)}</title><style>{STYLE}</style></head>\n'
        f"<body>{body}</body></html>\n"
    )


def verdict_of(run: StoredRun) -> str:
    """The stored verdict; `REFUSED` or `no verdict` where the run did not come to one."""
    if run.verdict:
        return str(run.verdict["verdict"])
    return "REFUSED" if run.refused else "no verdict"


def reasons_of(run: StoredRun) -> list[str]:
    """What the verdict rests on, after it what stopped the run; one line each."""
    found = [str(reason) for reason in run.verdict.get("reasons", ())] if run.verdict else []
    if run.refused:
        told = (("", run.refused.get("what")), ("why: ", run.refused.get("why")), ("fix: ", run.refused.get("fix")))
        found += [f"{name}{text}" for name, text in told if text]
    elif not run.verdict:
        found.append("the run ended before anything was judged")
    return found


def _head(run: StoredRun) -> Markup:
    verdict = verdict_of(run)
    arm = "control against candidate" if run.arms else run.manifest["arm"]
    facts = {
        "layout": run.manifest["layout"],
        "made at": run.manifest.get("created_at", "unknown"),
        **(_facts(run) if not run.arms else {side: _split(arm) for side, arm in run.arms}),
        "mode": run.verdict.get("mode") if run.verdict else None,
    }
    named = [join((tag("dt", name), tag("dd", value))) for name, value in facts.items() if value]
    return tag(
        "header",
        tag("h1", f"{run.manifest['layout']}: {arm}"),
        badge(verdict),
        _warning(run),
        bullets(reasons_of(run)),
        tag("dl", *named),
        class_=tone(verdict),
    )


def _facts(run: StoredRun) -> dict[str, object]:
    manifest, image = run.manifest, run.image or {}
    model = manifest.get("model") or {}
    patches = ", ".join(str(patch["id"]) for patch in manifest.get("patches") or ())
    return {
        "instance": manifest.get("instance"),
        "model": " ".join(str(model[key]) for key in ("path", "revision") if model.get(key)),
        "split": _split(run),
        "engine": " ".join(
            str(value) for value in (image.get("vllm"), image.get("image") or image.get("identity")) if value
        ),
        "patches": patches or "none",
        "by": f"{manifest.get('user')} on {manifest.get('host')}",
    }


def _split(run: StoredRun) -> str:
    parallel: Mapping[str, Any] = run.manifest.get("parallel") or {}
    layers = ",".join(map(str, parallel.get("partition") or ()))
    return f"TP {parallel.get('tensor')}, PP {parallel.get('pipeline')}" + (f", layers {layers}" if layers else "")


def _warning(run: StoredRun) -> Markup:
    told = [
        f"{f'{side}: ' if side else ''}{_WARNINGS[one.state]}"
        for side, one in (("", run), *run.arms)
        if one.state in _WARNINGS
    ]
    return join(tag("p", line, class_="warning") for line in told)


_WARNINGS = {
    "altered": "The files are not those that were sealed: deploy evidence verify names the differences.",
    "not sealed": "This run did not end; what follows is what it had.",
}


def comparison(found: Mapping[str, Any]) -> Markup:
    """Every row of the comparison; one with a verdict decides, one without is only reported."""
    rows: Sequence[Mapping[str, Any]] = found.get("rows") or ()
    if not rows:
        return absent("nothing was compared")
    body = [
        (row["group"], row["metric"], *row["cells"], badge(row["verdict"] or "reported"), row["reason"]) for row in rows
    ]
    return table(("group", "metric", "control", "candidate", "verdict", "reason"), body)


def _arms(run: StoredRun, build: Part) -> Markup:
    if not run.arms:
        return build(run, (run,))
    among = [arm for _, arm in run.arms]
    return tag("div", *(tag("div", tag("h3", side), build(arm, among)) for side, arm in run.arms), class_="arms")


def _foot(run: StoredRun) -> Markup:
    seal = f"sealed {run.seal}" if run.seal else "not sealed"
    return tag("footer", tag("p", f"{run.name}, {seal}, made by version {run.manifest.get('tool_version')}"))
