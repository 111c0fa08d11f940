"""One verdict over several probes. A probe that was not asked never counts as passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.probes.report import Verdict

_WORST_FIRST: tuple[Verdict, ...] = ("FAIL", "FAULT", "INCONCLUSIVE")
NOT_APPLICABLE = "not applicable: "
"""How the reason of a probe begins that the layout declares meaningless for its model."""
NOT_ASKED, DECLARED_OUT = "not asked", "not applicable"


def standing(report: Mapping[str, Any] | None) -> str:
    """A probe's verdict in one word or two; a skipped one was `not asked`, or is declared `not applicable`."""
    if report is None:
        return NOT_ASKED
    if report["verdict"] == "SKIP":
        declared = any(str(line).startswith(NOT_APPLICABLE) for line in report.get("reasons", ()))
        return DECLARED_OUT if declared else NOT_ASKED
    return str(report["verdict"])


def overall_of(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`verdict`, `reasons` (one line each) and `probes` (name to verdict) from the reports as stored.

    FAIL where any probe fails; else FAULT, else INCONCLUSIVE where any is so or was skipped; PASS only where every
    probe passed or was declared not applicable, and at least one passed.
    """
    verdicts: dict[str, str] = {str(report["probe"]): str(report["verdict"]) for report in reports}
    found: set[str] = set()
    reasons = []
    for report in reports:
        verdict, lines = str(report["verdict"]), [str(line) for line in report.get("reasons", [])]
        known = standing(report)
        found.add("INCONCLUSIVE" if known == NOT_ASKED else known)
        if verdict != "PASS":
            reasons += [f"{report['probe']}: {line}" for line in lines or [verdict]]
    overall: str = next((verdict for verdict in _WORST_FIRST if verdict in found), "PASS")
    if overall == "PASS" and "PASS" not in found:
        overall = "INCONCLUSIVE"
        reasons.append("no probe passed")
    return {"verdict": overall, "reasons": reasons, "probes": verdicts}
