"""The verdict of a degeneration run, computed from its stored records and from nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardwright.probes.degen.detector import Loop, LoopDetector
from shardwright.probes.degen.length_drift import length_drift
from shardwright.probes.degen.outcomes import Outcome, OutcomeClass, judge
from shardwright.probes.degen.plan import CONFIDENCE
from shardwright.probes.journal import Record
from shardwright.probes.pool import finished_trials, lost_trials
from shardwright.probes.report import ProbeReport, Verdict
from shardwright.probes.stats import (
    CurtailedPlan,
    clopper_pearson_upper,
    fisher_one_sided,
    newcombe_difference,
)
from shardwright.probes.stored import plan_on_file
from shardwright.probes.units import split_units

PROBE = "degen"
CONTROL_TRIAL = "control-trial"
ABORT_CHECK = "abort-check"

_MOST_ERRORS = 0.02
_LEVEL = 0.05


def judge_trial(record: Mapping[str, Any]) -> Outcome:
    """Judge a stored trial again, from its line alone."""
    error = record.get("error")
    if isinstance(error, Mapping):
        return Outcome(OutcomeClass.ERROR, str(error.get("detail", "")))
    text, reasoning = str(record.get("text") or ""), str(record.get("reasoning") or "")
    stored = record.get("loop")
    # A loop that was seen in token ids may hide in words, and one in words in ids that differ.
    loop = Loop(**stored) if isinstance(stored, Mapping) else LoopDetector().push_all(split_units(reasoning + text))
    finish = None if record.get("aborted") else record.get("finish_reason")
    return judge(
        text,
        reasoning,
        finish,
        loop,
        task=record.get("task", "short"),
        expect=tuple(record.get("expect", ())),
        scripts=tuple(record.get("scripts", ())),
    )


def report_from(records: Iterable[Record], plan_id: str, file: str = "") -> ProbeReport:
    """Judge every stored trial of a plan again and weigh them.

    FAIL, by rule `any`: one degenerate trial; by rule `curtailed`: four. FAULT: no trial was answered, or the server
    goes on with requests whose client left. INCONCLUSIVE: too many trials without an answer, 1 to 3 failures of a
    curtailed plan, or failures that the control shows as well.
    """
    records = list(records)
    header = plan_on_file(records, plan_id, PROBE)
    planned = [str(key) for key in header.get("planned", ())]
    wanted = set(planned)
    answered = {key: one for key, one in finished_trials(records, plan_id).items() if key in wanted}
    lost = {key: one for key, one in lost_trials(records, plan_id, answered).items() if key in wanted}
    judged = {key: judge_trial(record).outcome for key, record in answered.items()}
    control = [one for one in records if one["kind"] == CONTROL_TRIAL and one.get("plan") == plan_id]
    failures = sum(outcome.degenerate for outcome in judged.values())
    compared = _compared(answered, judged, control)
    freed = _freed(records, plan_id)
    more, verdict, reasons = _verdict(str(header.get("rule", "any")), len(planned), judged, lost, compared, freed)
    return ProbeReport(
        probe=PROBE,
        verdict=verdict,
        reasons=(*reasons, *_warnings(compared, header)),
        trials=len(judged),
        failures=failures,
        errors=len(lost),
        classes=dict(sorted(Counter([*map(str, judged.values()), *(str(OutcomeClass.ERROR) for _ in lost)]).items())),
        plan=plan_id,
        file=file,
        more_trials=more,
        numbers={
            "upper_bound": clopper_pearson_upper(failures, len(judged), CONFIDENCE),
            "p_value_vs_control": compared.get("p_value") if compared else None,
            "planned": len(planned),
            "confidence": CONFIDENCE,
            "rule": header.get("rule", "any"),
            "per_prompt": _counts(answered, judged, "prompt_id"),
            "per_task": _bounded(_counts(answered, judged, "task")),
            "per_concurrency": _bounded(_counts(answered, judged, "concurrency")),
            "control": compared,
            "abort_freed": freed,
            "last_error": _last(lost) if lost else None,
        },
    )


def failing_trials(records: Iterable[Record], plan_id: str) -> list[Record]:
    """The degenerate trials as they are on file, by key."""
    found = finished_trials(records, plan_id)
    return [record for _, record in sorted(found.items()) if judge_trial(record).outcome.degenerate]


def _verdict(
    rule: str,
    planned: int,
    judged: Mapping[str, OutcomeClass],
    lost: Mapping[str, Record],
    control: Mapping[str, Any] | None,
    freed: bool | None,
) -> tuple[int | None, Verdict, list[str]]:
    failures = sum(outcome.degenerate for outcome in judged.values())
    done = len(judged)
    plan = CurtailedPlan(trials=max(planned, 1))
    if not done:
        return None, "FAULT", [f"no trial got an answer: {_last(lost)}"]
    if rule == "any" and failures:
        return None, "FAIL", [f"{failures} of {done} trials are degenerate"]
    if rule == "curtailed" and failures >= plan.fail_at:
        if control and control["failures"] and control["p_value"] >= _LEVEL:
            same = f"the control fails too: {control['failures']} of {control['trials']}, p = {control['p_value']:.2g}"
            return (
                None,
                "INCONCLUSIVE",
                [f"{failures} of {done} trials are degenerate, but {same}; a healthy control would decide"],
            )
        return None, "FAIL", [f"{failures} of {done} trials are degenerate; {plan.fail_at} decide"]
    if freed is False:
        return (
            None,
            "FAULT",
            ["requests whose client left go on running: this server, or a router before it, keeps them"],
        )
    missing = planned - done
    if missing > (0 if rule == "any" else _MOST_ERRORS * planned):
        again = "the same command asks them again"
        return missing, "INCONCLUSIVE", [f"{missing} of {planned} trials have no answer: {_last(lost)}; {again}"]
    if failures:
        more = plan.more_trials(failures, done)
        decided = f"{more} more without a failure would bring the upper bound under {100 * plan.margin:g} %"
        return more, "INCONCLUSIVE", [f"{failures} of {done} trials are degenerate, too few to fail; {decided}"]
    return None, "PASS", []


def _last(lost: Mapping[str, Record]) -> str:
    return str(list(lost.values())[-1]["detail"]) if lost else "they were not asked"


def _compared(
    answered: Mapping[str, Record], judged: Mapping[str, OutcomeClass], control: Sequence[Record]
) -> dict[str, Any] | None:
    """Counts of the control in the tasks that both arms asked, with the P value of "more failures than the control"."""
    tasks = {str(record.get("task")) for record in answered.values()}
    found = {str(one["trial"]): one for one in control if str(one.get("task")) in tasks}
    outcomes = {key: judge_trial(one).outcome for key, one in found.items()}
    outcomes = {key: outcome for key, outcome in outcomes.items() if outcome is not OutcomeClass.ERROR}
    if not outcomes or not judged:
        return None
    failures, bad = (sum(one.degenerate for one in arm.values()) for arm in (judged, outcomes))
    low, high = newcombe_difference(failures, len(judged), bad, len(outcomes))
    healthy = [
        {key: record for key, record in arm.items() if classes.get(key) is OutcomeClass.OK}
        for arm, classes in ((answered, judged), (found, outcomes))
    ]
    drift = length_drift(*([_tokens(record) for record in arm.values()] for arm in healthy))
    return {
        "trials": len(outcomes),
        "failures": bad,
        "p_value": fisher_one_sided(failures, len(judged), bad, len(outcomes)),
        "rate_difference": [low, high],
        "length_drift": drift.to_json() if drift else None,
    }


def _warnings(control: Mapping[str, Any] | None, header: Mapping[str, Any]) -> list[str]:
    found = [str(note) for note in header.get("notes", ())]
    drift = (control or {}).get("length_drift")
    if drift and drift["warn"]:
        found.append(
            f"warning: healthy answers are {drift['ratio']:.2g} times as long as the control's "
            f"({drift['low']:.2g} to {drift['high']:.2g}, p = {drift['p_value']:.1g}), an early sign of degeneration"
        )
    if control and control["failures"]:
        found.append(f"note: the control is not healthy: {control['failures']} of {control['trials']} degenerate")
    return found


def _tokens(record: Mapping[str, Any]) -> int:
    usage = record.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return int(count if isinstance(count, int) else record.get("tokens") or 0)


def _counts(answered: Mapping[str, Record], judged: Mapping[str, OutcomeClass], name: str) -> dict[str, dict[str, Any]]:
    counts: dict[str, dict[str, Any]] = {}
    for key, record in sorted(answered.items()):
        row = counts.setdefault(str(record.get(name)), {"failures": 0, "trials": 0})
        row["failures"] += judged[key].degenerate
        row["trials"] += 1
    return counts


def _bounded(counts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: row | {"upper_bound": clopper_pearson_upper(row["failures"], row["trials"], CONFIDENCE)}
        for name, row in counts.items()
    }


def _freed(records: Iterable[Record], plan_id: str) -> bool | None:
    """Whether every request that was given up was seen to end; None where that could not be seen."""
    found = [one.get("freed") for one in records if one["kind"] == ABORT_CHECK and one.get("plan") == plan_id]
    seen = [one for one in found if one is not None]
    return all(seen) if seen else None
