"""What a gate says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Verdict = Literal["info", "unknown", "warn", "reject"]
Overall = Literal["accept", "warn", "unknown", "reject"]

_BY_SEVERITY = ("reject", "warn", "unknown", "info")


class Finding(Struct, frozen=True):
    """One finding: what is wrong with its number, why it matters, the next command, and what it was read from."""

    gate: str
    verdict: Verdict
    message: str
    why: str = ""
    fix: str = ""
    evidence: str = ""


def overall_verdict(findings: Sequence[Finding]) -> Overall:
    """The worst verdict; `info` leaves a deployment accepted."""
    verdicts = {finding.verdict for finding in findings}
    if "reject" in verdicts:
        return "reject"
    if "warn" in verdicts:
        return "warn"
    return "unknown" if "unknown" in verdicts else "accept"


def by_severity(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Refusals first, otherwise in the order of the gates."""
    return tuple(sorted(findings, key=lambda finding: _BY_SEVERITY.index(finding.verdict)))
