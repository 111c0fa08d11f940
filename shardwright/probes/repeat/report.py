"""The verdict of `repeat`, and of one prompt over two boots, computed from stored trials alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.probes.divergence import Divergence, first_divergence, quantile
from shardwright.probes.edges import topk_warning
from shardwright.probes.journal import Record
from shardwright.probes.pool import finished_trials, lost_trials
from shardwright.probes.report import ProbeReport, Verdict
from shardwright.probes.scores import Score, ScoreOutcome, score_of
from shardwright.probes.stored import plan_on_file, plan_record

ASKS = ("before", "after", "again", "once-more")
"""Other traffic lies between `before` and `after`; the last three follow each other. The last two are the noise."""

GAP_P99_FLOOR, GAP_P99_CAP = 0.02, 0.3
GAP_MAX_FLOOR, GAP_MAX_CAP = 0.5, 2.0
NOISE_FACTOR = 3.0
_MOST_ERRORS = 0.02


@dataclass(frozen=True)
class Change:
    """How far two askings of one prompt lie apart, nats; `parted` is where their greedy answers do."""

    gap_p99: float
    gap_max: float
    worst_token: int | None
    """The prompt token with the largest gap, counted from 0; None where no prompt logprobs were to be had."""
    parted: Divergence | None

    @property
    def none(self) -> bool:
        return self.gap_max == 0 and self.parted is None


def judge_trial(record: Mapping[str, Any]) -> ScoreOutcome:
    """Class of a stored trial: SAME, CHANGED (beyond the server's own noise), NONFINITE, or ERROR."""
    error = record.get("error")
    if isinstance(error, Mapping):
        return ScoreOutcome("NONFINITE" if error.get("nan") else "ERROR", str(error.get("detail", "")))
    scores = asked(record)
    if set(scores) != set(ASKS):
        return ScoreOutcome("ERROR", f"only {len(scores)} of {len(ASKS)} askings are on file")
    for name, score in scores.items():
        if why := score.broken():
            return ScoreOutcome("NONFINITE", f"{name}: {why}")
    change = change_between(scores["before"], scores["after"])
    noise = change_between(scores["again"], scores["once-more"])
    return _judge(change, noise, "other traffic between")


def asked(record: Mapping[str, Any]) -> dict[str, Score]:
    """The askings of a trial by name."""
    return {ask["ask"]: score_of(ask) for ask in record.get("asks", ())}


def change_between(one: Score, other: Score) -> Change:
    """Gaps of the actual tokens' logprobs: of the prompt, and of the answers as far as they are the same."""
    prompt = [abs(a - b) for a, b in zip(one.prompt_logprobs, other.prompt_logprobs, strict=True)]
    parted = first_divergence("", one, other)
    same = parted.index if parted else min(len(one.ids), len(other.ids))
    answer = [abs(a - b) for a, b in zip(one.logprobs[:same], other.logprobs[:same], strict=True)]
    gaps = sorted([*prompt, *answer])
    worst = max(range(len(prompt)), key=prompt.__getitem__) + 1 if prompt else None
    return Change(quantile(gaps, 0.99) if gaps else 0.0, gaps[-1] if gaps else 0.0, worst, parted)


def report_from(records: Iterable[Record], plan_id: str, file: str = "") -> ProbeReport:
    """FAIL on any prompt whose answer changed, or on a logprob that is no number."""
    records = list(records)
    header = plan_on_file(records, plan_id, "repeat")
    answered = finished_trials(records, plan_id)
    errors = lost_trials(records, plan_id, answered)
    judged = {str(key): judge_trial(record) for key, record in answered.items()}
    planned = len(header.get("planned", ())) or len(answered)
    reasons = [f"{key}: {outcome.detail}" for key, outcome in judged.items() if outcome.outcome != "SAME"]
    verdict = _verdict(judged, errors, planned)
    if verdict == "FAULT":
        reasons = [f"no prompt was answered: {record['detail']}" for record in list(errors.values())[-1:]]
    elif verdict == "INCONCLUSIVE":
        reasons.append(f"{planned - len(judged)} of {planned} prompts have no answer")
    lengths = [int(record["prompt_tokens"]) for record in answered.values()]
    warning = topk_warning("repeat", lengths, (header.get("request") or {}).get("index_topk"))
    if warning and lengths:
        reasons.append(f"warning: {warning}")
    if answered and header.get("prompt_logprobs") is False:
        reasons.append("the server gives no prompt logprobs: only the answers were compared")
    return _report("repeat", verdict, reasons, judged, len(errors), plan_id, file, _changes(answered), planned)


def compare_boots(records_a: Sequence[Record], records_b: Sequence[Record]) -> ProbeReport:
    """The same prompts on two boots of one deployment, from two runs of `repeat`.

    Weights that nobody loaded are the same within a boot and other ones after it: each run passes, this does not.
    INCONCLUSIVE where the two did not ask the same.
    """
    headers = [plan_record([r for r in records if r.get("probe") == "repeat"]) for records in (records_a, records_b)]
    a_header, b_header = headers
    if a_header is None or b_header is None:
        return _report("boots", "FAULT", ["a run of repeat is missing"], {}, 0, "", "", {}, 0)
    same = a_header["method"] == b_header["method"] and a_header["server"]["model"] == b_header["server"]["model"]
    if not same:
        why = "the two boots were asked different prompts, or serve different models"
        return _report("boots", "INCONCLUSIVE", [why], {}, 0, a_header["method"], "", {}, 0)
    a, b = (
        {
            str(key): record
            for key, record in finished_trials(records, header["plan"]).items()
            if judge_trial(record).outcome in ("SAME", "CHANGED")
        }
        for records, header in ((records_a, a_header), (records_b, b_header))
    )
    judged: dict[str, ScoreOutcome] = {}
    changes: dict[str, Any] = {}
    for key in a:
        if key not in b or a[key]["prompt_ids_sha256"] != b[key]["prompt_ids_sha256"]:
            continue
        one, other = asked(a[key]), asked(b[key])
        change = change_between(one["again"], other["again"])
        noise = [change_between(scores["again"], scores["once-more"]) for scores in (one, other)]
        judged[key] = _judge(change, max(noise, key=lambda n: n.gap_p99), "another boot")
        changes[key] = {"change": asdict(change), "noise": [asdict(n) for n in noise]}
    planned = len(a_header["planned"])
    verdict = _verdict(judged, {}, planned)
    reasons = [f"{key}: {outcome.detail}" for key, outcome in judged.items() if outcome.outcome != "SAME"]
    if verdict in ("FAULT", "INCONCLUSIVE"):
        reasons.append(f"{planned - len(judged)} of {planned} prompts were not answered on both boots")
    if verdict == "FAIL" and all(judge_trial(r).outcome == "SAME" for r in (*a.values(), *b.values())):
        reasons.append("each boot agrees with itself: memory that nobody wrote, such as weights that were not loaded")
    return _report("boots", verdict, reasons, judged, 0, a_header["method"], "", changes, planned)


def _judge(change: Change, noise: Change, what: str) -> ScoreOutcome:
    if change.none:
        return ScoreOutcome("SAME", "")
    limit_p99 = _limit(noise.gap_p99, GAP_P99_FLOOR, GAP_P99_CAP)
    limit_max = _limit(noise.gap_max, GAP_MAX_FLOOR, GAP_MAX_CAP)
    at = f", most at prompt token {change.worst_token}" if change.worst_token is not None else ""
    own = f"by itself {noise.gap_p99:.3g}"
    if change.gap_p99 > limit_p99:
        return ScoreOutcome(
            "CHANGED", f"with {what}, 1 % of logprobs move by {change.gap_p99:.3g} nats or more{at}; {own}"
        )
    if change.gap_max > limit_max:
        return ScoreOutcome("CHANGED", f"with {what}, a logprob moves by {change.gap_max:.3g} nats{at}; {own}")
    if change.parted is not None and change.parted.hard:
        at = f"token {change.parted.index} by {change.parted.gap:.3g} nats"
        return ScoreOutcome("CHANGED", f"with {what}, the answers part at {at}")
    return ScoreOutcome("SAME", f"within the server's noise: {change.gap_p99:.3g} nats; {own}")


def _limit(noise: float, floor: float, cap: float) -> float:
    """A server that differs from itself back to back has a fault too, so noise excuses only so much."""
    return max(floor, min(cap, NOISE_FACTOR * noise))


def _verdict(judged: Mapping[str, ScoreOutcome], errors: Mapping[Any, Record], planned: int) -> Verdict:
    if not judged:
        return "FAULT"
    if any(outcome.outcome in ("CHANGED", "NONFINITE") for outcome in judged.values()):
        return "FAIL"
    lost = planned - len(judged)
    return "INCONCLUSIVE" if lost or len(errors) > _MOST_ERRORS * planned else "PASS"


def _changes(answered: Mapping[Any, Record]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, record in answered.items():
        scores = asked(record)
        if set(scores) == set(ASKS):
            found[str(key)] = {
                "prompt_tokens": record["prompt_tokens"],
                "change": asdict(change_between(scores["before"], scores["after"])),
                "noise": asdict(change_between(scores["again"], scores["once-more"])),
            }
    return found


def _report(
    probe: str,
    verdict: Verdict,
    reasons: Sequence[str],
    judged: Mapping[str, ScoreOutcome],
    errors: int,
    plan: str,
    file: str,
    changes: Mapping[str, Any],
    planned: int,
) -> ProbeReport:
    classes = Counter(outcome.outcome for outcome in judged.values())
    return ProbeReport(
        probe=probe,
        verdict=verdict,
        reasons=tuple(reasons),
        trials=len(judged),
        failures=classes["CHANGED"] + classes["NONFINITE"],
        errors=errors,
        classes=dict(sorted((classes + Counter({"ERROR": errors})).items())),
        plan=plan,
        file=file,
        more_trials=planned - len(judged) or None if verdict == "INCONCLUSIVE" else None,
        numbers={"prompts": dict(changes)},
    )
