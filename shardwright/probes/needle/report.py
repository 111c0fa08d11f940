"""The verdict of a needle run, computed from its stored trials and from nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.probes.edges import topk_warning
from shardwright.probes.journal import Record
from shardwright.probes.needle.judge import NeedleClass, judge_trial
from shardwright.probes.pool import finished_trials, lost_trials
from shardwright.probes.report import ProbeReport, Verdict
from shardwright.probes.stats import clopper_pearson_upper, mcnemar
from shardwright.probes.stored import plan_on_file

_MOST_ERRORS = 0.02
_SHOWN = 5


def report_from(records: Iterable[Record], plan_id: str, file: str = "") -> ProbeReport:
    """Judge every stored trial of a plan again and weigh them.

    FAULT: a prompt had another length than asked for, or nothing was answered. FAIL: a loss that came again, two
    losses, or one in the concurrent pass, which cannot be asked again alone. INCONCLUSIVE: a single loss that did not
    come again, an answer that ran out of budget, a cold trial served from the cache, or more than 2 % without answer.
    """
    records = list(records)
    header = plan_on_file(records, plan_id, "needle")
    planned = [str(key) for key in header.get("planned", ())]
    answered = finished_trials(records, plan_id)
    errors = lost_trials(records, plan_id, answered)
    if planned:
        answered = {key: record for key, record in answered.items() if key in set(planned)}
    classes = {key: judge_trial(record).outcome for key, record in answered.items()}
    lost = [key for key, outcome in classes.items() if outcome.lost]
    missing = max(0, len(planned) - len(answered))
    verdict, reasons = _verdict(answered, classes, errors, lost, missing)
    return ProbeReport(
        probe="needle",
        verdict=verdict,
        reasons=(*reasons, *_notes(header, answered, classes)),
        trials=len(answered),
        failures=len(lost),
        errors=len(errors),
        classes=dict(sorted(Counter([*classes.values(), *(NeedleClass.ERROR for _ in errors)]).items())),
        plan=plan_id,
        file=file,
        more_trials=_more_trials(verdict, len(planned), classes, lost, missing),
        numbers=_numbers(answered, classes, lost),
    )


@dataclass(frozen=True)
class NeedleComparison:
    """Two runs cell by cell. `only_a` and `only_b` are trials that only one of them lost."""

    pairs: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    p_value: float
    """Two-sided, exact (McNemar); five one-way losses are needed for 0.0625."""


def compare_needles(records_a: Iterable[Record], records_b: Iterable[Record]) -> NeedleComparison:
    """Pair the trials of two runs by key and prompt; trials without an answer, or of another prompt, are left out."""
    a, b = _judged(records_a), _judged(records_b)
    keys = [key for key in a if key in b and a[key][1] == b[key][1]]
    only_a = tuple(key for key in keys if a[key][0].lost and not b[key][0].lost)
    only_b = tuple(key for key in keys if b[key][0].lost and not a[key][0].lost)
    return NeedleComparison(len(keys), only_a, only_b, mcnemar(len(only_a), len(only_b)))


def _judged(records: Iterable[Record]) -> dict[str, tuple[NeedleClass, Any]]:
    found: dict[str, tuple[NeedleClass, Any]] = {}
    for record in records:
        if record["kind"] == "trial" and record.get("probe") == "needle":
            outcome = judge_trial(record).outcome
            if outcome not in (NeedleClass.ERROR, NeedleClass.EMPTY_BUDGET):
                found.setdefault(str(record["trial"]), (outcome, record.get("prompt_sha256")))
    return found


def _verdict(
    answered: Mapping[str, Record],
    classes: Mapping[str, NeedleClass],
    errors: Mapping[str, Record],
    lost: Sequence[str],
    missing: int,
) -> tuple[Verdict, list[str]]:
    wrong_size = [record for record in errors.values() if "target_tokens" in record and "error" not in record]
    if wrong_size:
        return "FAULT", [f"trial {wrong_size[0]['trial']}: {wrong_size[0]['detail']}; the sizes cannot be trusted"]
    if not answered:
        last = [record["detail"] for record in errors.values()][-1:]
        return "FAULT", [f"no trial got an answer: {last[0]}" if last else "nothing was asked"]
    reasons = [_loss(key, answered[key]) for key in lost[:_SHOWN]]
    if len(lost) > _SHOWN:
        reasons.append(f"and {len(lost) - _SHOWN} more losses")
    reproduced = [key for key in lost if any(judge_trial(again).outcome.lost for again in _again(answered[key]))]
    together = [key for key in lost if answered[key].get("pass") == "concurrent"]
    if reproduced or together or len(lost) > 1:
        return "FAIL", reasons + _pattern(answered, classes, lost)
    if lost:
        return "INCONCLUSIVE", [*reasons, "a single loss that did not come again: run once more, another loss fails"]
    empty = [key for key, outcome in classes.items() if outcome is NeedleClass.EMPTY_BUDGET]
    if empty:
        return "INCONCLUSIVE", [
            f"{len(empty)} answers ran out of max_tokens in reasoning ({empty[0]}): raise the budget"
        ]
    warm = [key for key, record in answered.items() if record.get("pass") == "cold" and record.get("cache_hits")]
    if warm:
        return "INCONCLUSIVE", [
            f"{len(warm)} cold prompts were served from the cache ({warm[0]}): cache_salt is ignored; "
            "no number of trials decides what cold prompts would have found"
        ]
    if any(record.get("fresh_salt_hits") for record in answered.values()):
        return "INCONCLUSIVE", [
            "a prompt with a fresh cache_salt was served from the cache: the server ignores the salt"
        ]
    total = len(answered) + len(errors)
    if len(errors) > _MOST_ERRORS * total:
        return "INCONCLUSIVE", [
            f"{len(errors)} of {total} trials got no answer: {next(iter(errors.values()))['detail']}"
        ]
    if missing > len(errors):
        return "INCONCLUSIVE", [f"{missing} planned trials were not asked"]
    return "PASS", []


def _more_trials(
    verdict: Verdict, planned: int, classes: Mapping[str, NeedleClass], lost: Sequence[str], missing: int
) -> int | None:
    """What would decide: the plan once more after a loss that did not come again, else what has no usable answer."""
    if verdict != "INCONCLUSIVE":
        return None
    if lost:
        return planned or len(classes)
    return missing + sum(outcome is NeedleClass.EMPTY_BUDGET for outcome in classes.values()) or None


def _loss(key: str, record: Record) -> str:
    outcome = judge_trial(record)
    again = [judge_trial(other).outcome for other in _again(record)]
    came = f"; asked again: {', '.join(again)}" if again else ""
    return f"{key} {outcome.outcome}: {outcome.detail}{came}"


def _again(record: Record) -> list[Record]:
    return [other for other in record.get("again", ()) if isinstance(other, dict)]


def _pattern(answered: Mapping[str, Record], classes: Mapping[str, NeedleClass], lost: Sequence[str]) -> list[str]:
    """What the losses have in common, where that names a cause."""
    said = []
    passes = {answered[key].get("pass") for key in lost}
    everywhere = {record.get("pass") for record in answered.values()}
    if passes == {"warm"} and "cold" in everywhere:
        said.append("only warm prompts are lost: what the prefix cache gives back is wrong")
    if passes == {"concurrent"} and len(everywhere) > 1:
        said.append("only concurrent prompts are lost: requests disturb each other")
    lengths = {int(record["target_tokens"]) for record in answered.values()}
    bad = {int(answered[key]["target_tokens"]) for key in lost}
    good_below = [length for length in lengths if length < min(bad)]
    if good_below and all(length in bad for length in lengths if length >= min(bad)):
        said.append(f"found in every text up to {max(good_below)} tokens, first lost at {min(bad)}")
    residues = {length % 4 for length in bad}
    if len(bad) > 1 and len(residues) == 1 and residues.isdisjoint({length % 4 for length in lengths - bad}):
        said.append(f"every loss is at a length of {residues.pop()} mod 4")
    return said


def _notes(
    header: Mapping[str, Any], answered: Mapping[str, Record], classes: Mapping[str, NeedleClass]
) -> tuple[str, ...]:
    """What a pass does not cover."""
    notes = []
    records = list(answered.values())
    warning = topk_warning("needle", (int(record["target_tokens"]) for record in records), header.get("index_topk"))
    if records and warning:
        notes.append(f"warning: {warning}")
    if header.get("dropped"):
        notes.append(f"lengths too short for the question were left out: {', '.join(map(str, header['dropped']))}")
    warm = [record for record in records if record.get("pass") == "warm"]
    if warm and not any(record.get("cache_hits") for record in warm):
        unseen = all(record.get("cache_hits") is None for record in warm)
        why = "the server has no metrics" if unseen else "no warm prompt was served from the cache"
        notes.append(f"the warm pass proves nothing about cache hits: {why}")
    if records and not any(record.get("salted") for record in records):
        notes.append("the server takes no cache_salt: cold prompts are cold only because no two share a beginning")
    off = [record for record in records if record.get("pass") != "thinking"]
    if any(record.get("reasoning") for record in off):
        notes.append("thinking could not be turned off by the chat template")
    thinking = [record for record in records if record.get("pass") == "thinking"]
    if thinking and not any(record.get("reasoning") for record in thinking):
        notes.append("the thinking pass showed no reasoning: the model has none, or its parser is not set")
    return tuple(notes)


def _numbers(answered: Mapping[str, Record], classes: Mapping[str, NeedleClass], lost: Sequence[str]) -> dict[str, Any]:
    """Losses by pass, the one-sided 95 % upper bound of their rate (warm trials repeat a prompt, so without them)."""
    by_pass: dict[str, dict[str, int]] = {}
    for key, record in answered.items():
        counts = by_pass.setdefault(str(record.get("pass")), {"failures": 0, "trials": 0})
        counts["trials"] += 1
        counts["failures"] += classes[key].lost
    prompts = {key for key, record in answered.items() if record.get("pass") != "warm"}
    judged = [key for key in prompts if classes[key] is not NeedleClass.EMPTY_BUDGET]
    cold = [record for record in answered.values() if record.get("pass") == "cold" and record.get("ttft_s")]
    return {
        "upper_bound": clopper_pearson_upper(sum(classes[key].lost for key in judged), len(judged)),
        "by_pass": by_pass,
        "lost": list(lost),
        "longest_tokens": max((int(record["target_tokens"]) for record in answered.values()), default=0),
        "prefill_tokens_per_s": {
            str(length): round(length / min(r["ttft_s"] for r in cold if r["target_tokens"] == length), 1)
            for length in sorted({int(record["target_tokens"]) for record in cold})
        },
    }
