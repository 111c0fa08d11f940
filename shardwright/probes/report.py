"""What every probe ends with: one verdict, its grounds, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwright.errors import ExitCode

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "FAULT", "SKIP"]
"""FAULT: the harness or the way to the server failed, nothing is known of the model. SKIP: not asked, never a pass."""

EXIT_CODES: Mapping[Verdict, ExitCode] = {
    "PASS": ExitCode.OK,
    "FAIL": ExitCode.DRIFT,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
    "FAULT": ExitCode.HARNESS,
    "SKIP": ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True)
class Judged:
    """One trial as it is judged from its record: its class, the ground for it, and what that says of the model."""

    probe: str
    outcome: str
    detail: str
    verdict: Verdict


@dataclass(frozen=True)
class ProbeReport:
    """One probe as it ended. Everything in `numbers` can be computed again from the trials in `file`."""

    probe: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why the verdict is not PASS, or what a pass rests on; one line each."""
    trials: int
    failures: int
    errors: int
    """Requests without a complete answer; they are neither passes nor failures of the model."""
    classes: Mapping[str, int]
    plan: str
    file: str
    more_trials: int | None = None
    """How many further trials would decide, where the verdict is INCONCLUSIVE and that is known."""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Plain data; the probe's own numbers stand beside the common ones."""
        return {
            "probe": self.probe,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "trials": self.trials,
            "failures": self.failures,
            "errors": self.errors,
            "classes": dict(self.classes),
            "more_trials": self.more_trials,
            "plan": self.plan,
            "file": self.file,
            **self.numbers,
        }
