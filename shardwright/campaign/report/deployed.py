"""What was deployed and why it was let through: gates and waivers, the proof ladder, the command."""

from __future__ import annotations

from typing import Any

from shardwright.campaign.report.markup import Markup, absent, badge, bullets, folded, join, table, tag
from shardwright.campaign.report.stored import StoredRun

_RUNGS = {
    "bytes": "the files inside the engine are the built ones",
    "import": "the engine imports them",
    "reach": "the served model runs through the patched symbols",
    "hits": "every rank that must has logged that it ran them",
}


def gates(run: StoredRun) -> Markup:
    """All findings, and what was waived."""
    found = run.gates
    if found is None:
        return absent("the gates did not run")
    findings = found.get("findings") or []
    told = tag("p", badge(found["verdict"]), " " if findings else " without a finding")
    rows = [
        (badge(one["verdict"]), one["gate"], _lines(one["message"], one.get("why"), one.get("fix"))) for one in findings
    ]
    waivers = found.get("waivers") or []
    waived = join((tag("h3", "Waived by name"), bullets(waivers))) if waivers else tag("p", "Nothing is waived.")
    return join((told, table(("verdict", "gate", "finding"), rows) if rows else "", waived))


def proof(run: StoredRun) -> Markup:
    """The four rungs, lowest first, and every row that is not OK."""
    found = run.proof
    if found is None:
        patches = run.manifest.get("patches")
        return absent("the patches were not proven" if patches else "no patches, so nothing to prove")
    rows: list[Any] = found["rows"]
    rungs = [
        (number, rung, badge(verdict), sum(row["rung"] == rung for row in rows), _RUNGS.get(rung, ""))
        for number, (rung, verdict) in enumerate(found["rungs"].items(), start=1)
    ]
    ladder = table(("", "rung", "verdict", "rows", "what it says"), rungs, numeric=(3,))
    open_ = [_proof_row(row) for row in rows if row["verdict"] != "OK"]
    heads = ("rung", "verdict", "patch", "subject", "what was seen")
    rest = folded(f"all {len(rows)} rows", table(heads, [_proof_row(row) for row in rows]))
    told = tag("p", "Proven." if found["proven"] else "Not proven.")
    return join((told, ladder, table(heads, open_) if open_ else "", rest))


def _proof_row(row: dict[str, Any]) -> tuple[object, ...]:
    return row["rung"], badge(row["verdict"]), row["patch"], row["subject"], _lines(row["message"], None, row["fix"])


def _lines(message: str, why: str | None, fix: str | None) -> Markup:
    more = [tag("div", f"{name}: {text}", class_="soft") for name, text in (("why", why), ("fix", fix)) if text]
    return join((tag("div", message), *more))


def command(run: StoredRun) -> Markup:
    """The whole command line and where each part of it comes from, folded."""
    found = run.command
    if found is None:
        return absent("the run wrote no command")
    parts = [(part["kind"], tag("code", " ".join(part["tokens"])), part["origin"]) for part in found["parts"]]
    secrets = found.get("secrets") or []
    hidden = tag("p", f"Secrets by name: {', '.join(map(str, secrets))}") if secrets else ""
    overrides = found.get("overrides") or []
    changed = join((tag("h3", "Overrides"), bullets(overrides))) if overrides else ""
    table_ = table(("kind", "tokens", "from"), parts)
    return folded("The command, with the origin of every part", tag("pre", found["shell"]), changed, hidden, table_)
