"""Smoke with its checks on file, so that the report can be made again from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from shardwright.probes.journal import Journal, Record
from shardwright.probes.report import ProbeReport, Verdict
from shardwright.probes.smoke.run import Check, run_smoke
from shardwright.probes.stored import plan_on_file
from shardwright.probes.wire import Endpoint

PROBE = "smoke"
PLAN = "smoke-v1"
"""The checks are the same for every server, so the plan has one name."""


def run_smoke_recorded(
    endpoint: Endpoint, model: str | None, journal: Journal, on_check: Callable[[Check], None] | None = None
) -> ProbeReport:
    """Run every check and keep each as a trial. Raises TransportError where nobody answers at the start."""

    def keep(check: Check) -> None:
        record = {
            "probe": PROBE,
            "plan": PLAN,
            "trial": check.id,
            "class": check.status,
            "detail": check.detail,
            "elapsed_s": round(check.elapsed_s, 3),
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        kept.append(journal.append("trial", record))
        if on_check is not None:
            on_check(check)

    kept = [journal.append("plan", {"probe": PROBE, "plan": PLAN})]
    run_smoke(endpoint, model, keep)
    return smoke_report_from(kept, PLAN)


def smoke_report_from(records: Iterable[Record], plan_id: str = PLAN) -> ProbeReport:
    """The report that these records give; of a check that was made twice the last counts."""
    records = list(records)
    plan_on_file(records, plan_id, PROBE)
    checks = {
        str(record["trial"]): record
        for record in records
        if record["kind"] == "trial" and record.get("probe") == PROBE and record.get("plan") == plan_id
    }
    classes = Counter(str(record["class"]) for record in checks.values())
    failed = [f"{name}: {record['detail']}" for name, record in checks.items() if record["class"] == "FAIL"]
    verdict: Verdict = "FAIL" if failed else "PASS" if classes["PASS"] else "FAULT"
    return ProbeReport(
        probe=PROBE,
        verdict=verdict,
        reasons=tuple(failed),
        trials=classes["PASS"] + classes["FAIL"],
        failures=classes["FAIL"],
        errors=0,
        classes=dict(sorted(classes.items())),
        plan=plan_id,
        file="",
        numbers={"checks": {name: record["class"] for name, record in checks.items()}},
    )
