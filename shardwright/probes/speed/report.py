"""From stored rounds to flat rows, one for each test, and to one verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from shardwright.probes.journal import Record
from shardwright.probes.pool import finished_trials, lost_trials
from shardwright.probes.report import ProbeReport, Verdict
from shardwright.probes.speed.floors import below_floors
from shardwright.probes.speed.round import (
    BUNCHED_LIMIT,
    BUNCHED_USELESS,
    Measured,
    TrialOutcome,
    judge_trial,
    measure,
    prefill_tok_s,
)
from shardwright.probes.stored import plan_on_file

PROBE = "speed"
Row = dict[str, Any]


@dataclass(frozen=True)
class Samples:
    """What the quantiles of one row are taken from, milliseconds; empty where its times may not be believed."""

    ttft_ms: tuple[float, ...]
    itl_ms: tuple[float, ...]


_DISTRUSTED = ("CONTAMINATED", "STEPS_DISAGREE", "CACHE_HIT")
_WORTH_ASKING_AGAIN = ("NO_OVERLAP", "TOO_FAST")
"""What a busy host does to single rounds; the other classes would come again."""
_LOST_SHARE = 0.02


def rows_of(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Flat rows, one for each test, from the trials of one run; each value is a number, a text, a bool or None."""
    rows = []
    for key, group, good, limited in _tests(records):
        row = _prefill_row(good, key) if key[0] == "prefill" else _decode_row(good, key, limited)
        row |= {"lost": len(group) - len(good), "spec": group[0].get("spec")}
        rows.append(row)
    return rows


def samples_from(records: Iterable[Record], plan_id: str) -> list[Samples]:
    """The values behind the rows of `report_from`, in the same order."""
    records = list(records)
    header = plan_on_file(records, plan_id, PROBE)
    trials = _planned_trials(records, header["trials"], plan_id)
    return [
        _prefill_samples(good) if key[0] == "prefill" else _decode_samples([measure(one) for one in good], limited)
        for key, _, good, limited in _tests(trials.values())
    ]


def _tests(
    records: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[tuple[Any, ...], list[Mapping[str, Any]], list[Mapping[str, Any]], bool]]:
    """For each test its key, its trials, those of them that count, and whether the client limits what it says."""
    trials = [record for record in records if record.get("kind", "trial") == "trial" and record.get("test")]
    judged = [(record, judge_trial(record).outcome) for record in _first_of_each(trials)]
    limited = {
        record["concurrency"]
        for record, outcome in judged
        if record["test"] == "self-check" and outcome == "CLIENT_LIMITED"
    }
    groups: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], str]]] = {}
    for record, outcome in judged:
        if record["test"] != "self-check":
            names = ("test", "prompt", "sampler", "concurrency", "max_tokens", "target_tokens")
            groups.setdefault(tuple(record.get(name) for name in names), []).append((record, outcome))
    for key, group in groups.items():
        good = [record for record, outcome in group if outcome == "OK"]
        yield key, [record for record, _ in group], good, key[3] in limited


def report_from(records: Iterable[Record], plan_id: str, file: str = "") -> ProbeReport:
    """The report of a plan from what is on file, every trial judged again."""
    records = list(records)
    header = plan_on_file(records, plan_id, PROBE)
    planned: list[str] = header["trials"]
    trials = _planned_trials(records, planned, plan_id)
    lost = lost_trials(records, plan_id, trials)
    outcomes = {key: judge_trial(record) for key, record in trials.items()}
    rows = rows_of(trials.values())
    verdict, reasons = _verdict(planned, trials, rows, lost)
    return ProbeReport(
        probe=PROBE,
        verdict=verdict,
        reasons=tuple(reasons),
        trials=len(trials),
        failures=len(_acceptance_faults(rows, trials)),
        errors=len(lost),
        classes=dict(sorted(Counter(outcome.outcome for outcome in outcomes.values()).items())),
        plan=plan_id,
        file=file,
        more_trials=_more_trials(planned, outcomes.values(), rows) if verdict == "INCONCLUSIVE" else None,
        numbers={"planned": len(planned), "spec": header["spec"], "rows": rows},
    )


def _planned_trials(records: Sequence[Record], planned: Sequence[str], plan_id: str) -> dict[str, Record]:
    return {key: record for key, record in finished_trials(records, plan_id).items() if key in planned}


def _verdict(
    planned: Sequence[str], trials: Mapping[str, Record], rows: Sequence[Row], lost: Mapping[str, Record]
) -> tuple[Verdict, list[str]]:
    if not trials:
        return "FAULT", [f"no request was answered: {next(iter(lost.values()))['detail']}" if lost else "nothing asked"]
    outcomes = {key: judge_trial(record) for key, record in trials.items()}
    distrusted = [f"{key}: {o.detail}" for key, o in outcomes.items() if o.outcome in _DISTRUSTED]
    if distrusted:
        return "FAULT", distrusted
    faults = _acceptance_faults(rows, trials)
    if faults:
        return "FAIL", faults
    open_points = [f"{key}: {o.detail}" for key, o in outcomes.items() if o.outcome not in ("OK", "CLIENT_LIMITED")]
    open_points += [f"{key}: {o.detail}" for key, o in outcomes.items() if o.outcome == "CLIENT_LIMITED"]
    if len(planned) - len(trials) > _LOST_SHARE * len(planned):
        open_points += [f"{key} has no answer: {record['detail']}" for key, record in lost.items()]
    open_points += _weak_points(rows, trials)
    return ("INCONCLUSIVE", open_points) if open_points else ("PASS", _notes(rows))


def _weak_points(rows: Sequence[Row], trials: Mapping[str, Record]) -> list[str]:
    """Why numbers that were measured still prove nothing."""
    points = []
    if any(record.get("metrics") is None for record in trials.values() if record["test"] != "self-check"):
        points.append("the server has no metrics: the traffic of others would go unnoticed")
    points += [low.open_point for low in below_floors(rows) if low.more_rounds != 0]
    for row in rows:
        if row["settled"] is False:
            points.append(f"{_name(row)}: the warm-up did not settle, other rounds would give other numbers")
        if row["bunched"] is not None and row["bunched"] > BUNCHED_USELESS:
            points.append(f"{_name(row)}: {100 * row['bunched']:.0f} % of the events came bunched")
    return points


def _acceptance_faults(rows: Sequence[Row], trials: Mapping[str, Record]) -> list[str]:
    """What is wrong with the drafts of a speculating server; empty for one that does not speculate."""
    decode = [record for record in trials.values() if record["test"] == "decode"]
    counters = [record["metrics"] for record in decode if record.get("metrics")]
    if not any(one.get("drafts") is not None for one in counters):
        return []
    if not any(one.get("drafts") for one in counters):
        return ["the server counts drafts, but made none: speculation is configured and does not run"]
    return [low.told for low in below_floors(rows) if low.more_rounds == 0]


def _more_trials(planned: Sequence[str], outcomes: Collection[TrialOutcome], rows: Sequence[Row]) -> int | None:
    """Trials without an answer or a usable time, and the rounds that acceptance wants; None where more do not help."""
    again = sum(one.outcome in _WORTH_ASKING_AGAIN for one in outcomes)
    rounds = sum(low.more_rounds or 0 for low in below_floors(rows))
    return len(planned) - len(outcomes) + again + rounds or None


def _notes(rows: Sequence[Row]) -> list[str]:
    bunched = [row for row in rows if row["bunched"] is not None and row["bunched"] > BUNCHED_LIMIT]
    told = [f"{_name(row)}: {100 * row['bunched']:.0f} % of the events came bunched, so no ITL" for row in bunched]
    single = [row for row in rows if row["test"] == "decode" and row["concurrency"] == 1 and row["tok_s"]]
    return [
        f"{_name(row)}: {row['tok_s']:.1f} tok/s, step {row['step_ms']:.2f} ms"
        + (f", acceptance length {row['accept_len']:.2f}" if row["accept_len"] else "")
        for row in single
    ] + told


def _name(row: Row) -> str:
    if row["test"] == "prefill":
        return f"prefill {row['target_tokens']}"
    return f"{row['prompt']} {row['sampler']} c{row['concurrency']}"


def _decode_row(records: Sequence[Mapping[str, Any]], key: Sequence[Any], limited: bool) -> Row:
    _, prompt, sampler, level, max_tokens, _ = key
    rounds = [measure(record) for record in records]
    shown = [] if limited else rounds
    samples = _decode_samples(rounds, limited)
    bunched = _bunched(rounds)
    tok_s = [one.tok_s for one in shown]
    row: Row = {
        "test": "decode",
        "prompt": prompt,
        "sampler": sampler,
        "concurrency": level,
        "prompt_tokens": _median([s["prompt_tokens"] for record in records for s in record["streams"]]),
        "target_tokens": None,
        "max_tokens": max_tokens,
        "rounds": len(records),
        "status": "CLIENT-LIMITED" if limited else "OK" if records else "NOT-MEASURED",
        **_spread("tok_s", tok_s),
        "tok_s_stream": _rounded(_median(tok_s), 1 / level),
        **_spread("step_ms", [one.step_ms for one in shown]),
        "token_ms": _rounded(_median([one.token_ms for one in shown])),
        **_spread("accept_len", [one.accept_len for one in rounds if one.accept_len is not None]),
        "drafts": sum(one.drafts for one in rounds) or None,
        **_percentiles("ttft_ms", samples.ttft_ms),
        "first_byte_ms_p50": _rounded(_median([value for one in shown for value in one.first_byte_ms])),
        **_percentiles("itl_ms", samples.itl_ms),
        "bunched": _rounded(bunched),
        "preemptions": sum((record.get("metrics") or {}).get("preemptions") or 0 for record in records),
        "settled": all(record["warm_up"]["settled"] for record in records) if records else None,
    }
    return row | _acceptance(rounds)


def _prefill_row(records: Sequence[Mapping[str, Any]], key: Sequence[Any]) -> Row:
    row = _decode_row([], ("prefill", None, None, 1, None, None), limited=False)
    return row | {
        "test": "prefill",
        "prompt_tokens": _median([record["prompt_tokens"] for record in records]),
        "target_tokens": key[5],
        "rounds": len(records),
        "status": "OK" if records else "NOT-MEASURED",
        **_spread("tok_s", [prefill_tok_s(record) for record in records]),
        **_percentiles("ttft_ms", _prefill_samples(records).ttft_ms),
    }


def _decode_samples(rounds: Sequence[Measured], limited: bool) -> Samples:
    shown = [] if limited else rounds
    bunched = _bunched(rounds)
    trusted = shown if bunched is not None and bunched <= BUNCHED_LIMIT else []
    return Samples(
        tuple(value for one in shown for value in one.ttft_ms), tuple(gap for one in trusted for gap in one.itl_ms)
    )


def _prefill_samples(records: Sequence[Mapping[str, Any]]) -> Samples:
    return Samples(tuple(1000 * record["ttft_s"] for record in records), ())


def _bunched(rounds: Sequence[Measured]) -> float | None:
    return fmean(one.bunched for one in rounds) if rounds else None


def _acceptance(rounds: Sequence[Measured]) -> Row:
    """Acceptance by draft place, pooled over rounds, as columns `accept_pos0`, `accept_pos1`, …"""
    drafted = [one for one in rounds if one.drafts]
    drafts = sum(one.drafts for one in drafted)
    places = min((len(one.accept_rates) for one in drafted), default=0)
    return {
        f"accept_pos{place}": _rounded(sum(one.accept_rates[place] * one.drafts for one in drafted) / drafts)
        for place in range(places)
    }


def _first_of_each(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Finished trials by key; one that is on file twice counts once, as first written."""
    found: dict[Any, Mapping[str, Any]] = {}
    for record in trials:
        if record.get("class") != "ERROR":
            found.setdefault(record["trial"], record)
    return list(found.values())


def _spread(name: str, values: Sequence[float]) -> Row:
    """Median, median absolute deviation and coefficient of variation; None where there are too few values."""
    middle = _median(values)
    mad = _median([abs(value - middle) for value in values]) if middle is not None else None
    cv = stdev(values) / fmean(values) if len(values) > 1 and fmean(values) else None
    return {name: _rounded(middle), f"{name}_mad": _rounded(mad), f"{name}_cv": _rounded(cv)}


def _percentiles(name: str, values: Sequence[float]) -> Row:
    """Median, p95 and p99 with their n (below 100 values p99 is the largest one) and the coefficient of variation."""
    ordered = sorted(values)
    return {
        f"{name}_p50": _rounded(_median(ordered)),
        f"{name}_p95": _rounded(_at(ordered, 0.95)),
        f"{name}_p99": _rounded(_at(ordered, 0.99)),
        f"{name}_n": len(ordered),
        f"{name}_cv": _rounded(stdev(ordered) / fmean(ordered) if len(ordered) > 1 else None),
    }


def _at(ordered: Sequence[float], share: float) -> float | None:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _rounded(value: float | None, factor: float = 1.0) -> float | None:
    return None if value is None else round(value * factor, 5)
