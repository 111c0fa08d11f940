"""Compare two recordings, always against how far the first is from itself; all from stored trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.errors import UsageError
from shardwright.probes.divergence import (
    HARD_GAP_NATS,
    Distance,
    Divergence,
    Position,
    by_prompt,
    first_divergence,
    pool,
    positions,
)
from shardwright.probes.edges import topk_warning
from shardwright.probes.journal import Record
from shardwright.probes.parity.plan import Round
from shardwright.probes.pool import finished_trials, lost_trials
from shardwright.probes.report import ProbeReport, Verdict
from shardwright.probes.scores import Score, ScoreOutcome, score_of
from shardwright.probes.stored import plan_on_file, plan_record

MEAN_KL, PROMPT_KL, GAP_P99, SAME_TOP = 0.002, 0.01, 0.5, 0.985
"""What a change of topology alone stays within, where the noise of the first arm asks for no more."""
NOISE_FACTOR = 3.0
_UNHEALTHY_KL = 0.1
_MOST_ERRORS = 0.02


@dataclass(frozen=True)
class Gate:
    """One number against its limit, with the same number of the first arm against itself."""

    name: str
    value: float
    limit: float
    noise: float | None
    holds: bool


@dataclass(frozen=True)
class Arm:
    """One recording: what was asked and every score, by trial."""

    header: Mapping[str, Any]
    scores: Mapping[str, Score]
    broken: Mapping[str, str]
    lost: int

    def round(self, how: Round) -> dict[str, Score]:
        """Scores by prompt name."""
        return {key.split("/")[0]: score for key, score in self.scores.items() if key.endswith(f"/{how}")}


def judge_trial(record: Mapping[str, Any]) -> ScoreOutcome:
    """Class of a stored trial: OK, NONFINITE (a logprob is no number), or ERROR (no complete answer)."""
    error = record.get("error")
    if isinstance(error, Mapping):
        return ScoreOutcome("NONFINITE" if error.get("nan") else "ERROR", str(error.get("detail", "")))
    why = score_of(record).broken()
    return ScoreOutcome("NONFINITE", why) if why else ScoreOutcome("OK", "")


def read_arm(records: Sequence[Record], name: str) -> Arm:
    """The last recording in `records`. Raises UsageError where there is none."""
    header = plan_record(record for record in records if record.get("probe") == "parity")
    if header is None:
        raise UsageError(f"{name} is no recording", fix="make one with deploy parity record --output FILE")
    return _arm(records, header)


def _arm(records: Sequence[Record], header: Mapping[str, Any]) -> Arm:
    answered = finished_trials(records, header["plan"])
    judged = {key: judge_trial(record) for key, record in answered.items()}
    return Arm(
        header,
        {key: score_of(record) for key, record in answered.items() if judged[key].outcome == "OK"},
        {key: outcome.detail for key, outcome in judged.items() if outcome.outcome == "NONFINITE"},
        len(lost_trials(records, header["plan"], answered)),
    )


def report_from(records: Iterable[Record], plan_id: str, file: str = "") -> ProbeReport:
    """Is this recording whole and sound. Its distance from itself is in the numbers as `noise`."""
    records = list(records)
    arm = _arm(records, plan_on_file(records, plan_id, "parity"))
    planned = len(arm.header["planned"])
    trials = len(arm.scores) + len(arm.broken)
    reasons = [f"{key}: {why}" for key, why in arm.broken.items()]
    verdict: Verdict = "PASS"
    if not trials:
        verdict, reasons = "FAULT", ["no prompt was scored"]
    elif arm.broken:
        verdict = "FAIL"
    elif trials < planned:
        verdict, reasons = "INCONCLUSIVE", [f"{planned - trials} of {planned} scores are missing"]
    noise = pool(_rows(arm.round("alone"), arm.round("loaded")))
    return ProbeReport(
        probe="parity",
        verdict=verdict,
        reasons=(*reasons, *_warnings(arm)),
        trials=trials,
        failures=len(arm.broken),
        errors=arm.lost,
        classes=_classes({"OK": len(arm.scores), "NONFINITE": len(arm.broken), "ERROR": arm.lost}),
        plan=plan_id,
        file=file,
        more_trials=planned - trials if verdict == "INCONCLUSIVE" else None,
        numbers={"noise": _plain(noise), "answers": _answers(arm, arm, "alone", "loaded")[1]},
    )


def compare(
    records_a: Sequence[Record], records_b: Sequence[Record], records_noise: Sequence[Record] | None = None
) -> ProbeReport:
    """Is B the same model as A. `records_noise` is a second recording of A, for a wider measure of its noise.

    Raises UsageError (exit 64) where the recordings differ in prompts, model, sampler or method.
    """
    a, b = read_arm(records_a, "A"), read_arm(records_b, "B")
    second = read_arm(records_noise, "the second recording of A") if records_noise is not None else None
    for name, other in (("B", b), ("the second recording of A", second)):
        if other is not None:
            _refuse_others(a, other, name)
    floors = [_rows(a.round("alone"), a.round("loaded"))]
    if second is not None:
        floors += [_rows(a.round("alone"), second.round("alone")), _rows(second.round("alone"), second.round("loaded"))]
    rows = _rows(a.round("alone"), b.round("alone"))
    own = _rows(b.round("alone"), b.round("loaded"))
    split = a.header["request"]["index_topk"]
    gates = _gates(rows, floors, split) + _own_gates(own, floors)
    classes, answers = _answers(a, b, "alone", "alone")
    noise_classes, noise_answers = _answers(a, a, "alone", "loaded")
    gates.append(_hard_gate(classes["HARD"], noise_classes["HARD"]))
    noise = max((d for d in map(pool, floors) if d is not None), key=lambda d: d.mean_kl, default=None)
    verdict, reasons = _verdict(a, b, gates, pool(rows), noise)
    distance = pool(rows)
    return ProbeReport(
        probe="parity",
        verdict=verdict,
        reasons=(*reasons, *_warnings(a)),
        trials=len(by_prompt(rows)),
        failures=sum(not gate.holds for gate in gates),
        errors=a.lost + b.lost,
        classes=_classes(classes),
        plan=str(a.header["method"]),
        file="",
        more_trials=(_missing(a) + _missing(b)) or None if verdict == "INCONCLUSIVE" else None,
        numbers={
            "distance": _plain(distance),
            "noise": _plain(noise),
            "own_noise_of_b": _plain(pool(own)),
            "gates": [asdict(gate) for gate in gates],
            "answers": answers,
            "noise_answers": noise_answers,
            "worst_prompts": _worst(rows),
        },
    )


def _refuse_others(a: Arm, b: Arm, name: str) -> None:
    for what, mine, other in (
        ("method (lengths, sampler, seeds)", a.header["method"], b.header["method"]),
        ("model", a.header["server"]["model"], b.header["server"]["model"]),
        ("prompts", a.header["prompts_sha256"], b.header["prompts_sha256"]),
    ):
        if mine != other:
            raise UsageError(
                f"A and {name} cannot be compared: they differ in {what}",
                why=f"{mine} against {other}",
                fix="record both with the same mode, of the same model",
            )


def _rows(a: Mapping[str, Score], b: Mapping[str, Score]) -> list[Position]:
    return [row for name in a if name in b for row in positions(name, a[name], b[name])]


def _parts(rows: Sequence[Position], split: int | None) -> dict[str, list[Position]]:
    """All positions; with an index_topk those that keep every token, and those that do not."""
    parts = {"all positions": list(rows)}
    if split is not None:
        parts[f"positions up to {split}"] = [row for row in rows if row.position < split]
        parts[f"positions past {split}"] = [row for row in rows if row.position >= split]
    return {name: part for name, part in parts.items() if part}


def _gates(rows: Sequence[Position], floors: Sequence[Sequence[Position]], split: int | None) -> list[Gate]:
    gates = []
    noise = [_parts(floor, split) for floor in floors]
    for name, part in _parts(rows, split).items():
        distance = pool(part)
        own = [found for found in (pool(parts.get(name, [])) for parts in noise) if found is not None]
        if distance is not None:
            gates += [
                _upper(f"mean KL, {name}", distance.mean_kl, MEAN_KL, [d.mean_kl for d in own]),
                _upper(f"p99 of logprob gaps, {name}", distance.gap_p99, GAP_P99, [d.gap_p99 for d in own]),
                _upper(
                    f"likeliest token differs, {name}",
                    1 - distance.same_top,
                    1 - SAME_TOP,
                    [1 - d.same_top for d in own],
                ),
            ]
    gates.append(_upper("mean KL of the worst prompt", _worst_kl(rows), PROMPT_KL, [_worst_kl(f) for f in floors]))
    return gates


def _own_gates(own: Sequence[Position], floors: Sequence[Sequence[Position]]) -> list[Gate]:
    """B against itself: a fault that shows only among concurrent requests."""
    distance = pool(own)
    noise = [d.mean_kl for d in map(pool, floors) if d is not None]
    return [_upper("mean KL, B one at a time against eight", distance.mean_kl, MEAN_KL, noise)] if distance else []


def _hard_gate(found: int, noise: int) -> Gate:
    name = f"greedy answers that part by more than {HARD_GAP_NATS} nats"
    return Gate(name, found, noise, noise, found <= noise)


def _upper(name: str, value: float, floor: float, noise: Sequence[float]) -> Gate:
    most = max(noise, default=None)
    limit = max(floor, NOISE_FACTOR * most) if most is not None else floor
    return Gate(name, value, limit, most, value <= limit)


def _worst_kl(rows: Iterable[Position]) -> float:
    return max((distance.mean_kl for distance in by_prompt(rows).values()), default=0.0)


def _verdict(
    a: Arm, b: Arm, gates: Sequence[Gate], distance: Distance | None, noise: Distance | None
) -> tuple[Verdict, list[str]]:
    for name, arm in (("A", a), ("B", b)):
        if not arm.scores and not arm.broken:
            return "FAULT", [f"{name} holds no score"]
    broken = [f"{name} {key}: {why}" for name, arm in (("A", a), ("B", b)) for key, why in arm.broken.items()]
    if b.broken:
        return "FAIL", broken
    if a.broken:
        return "INCONCLUSIVE", [*broken, "A itself is broken, so nothing can be held against it"]
    missing = [
        f"{name} lacks {_missing(arm)} of {len(arm.header['planned'])} scores"
        for name, arm in (("A", a), ("B", b))
        if _missing(arm) > _MOST_ERRORS * len(arm.header["planned"])
    ]
    failed = [_said(gate) for gate in gates if not gate.holds]
    if failed and distance is not None:
        worst = f"worst at prompt {distance.worst[0]}, token {distance.worst[1]}" if distance.worst else ""
        return "FAIL", [*failed, *([worst] if worst else [])]
    if missing or distance is None:
        return "INCONCLUSIVE", missing or ["no prompt was scored by both"]
    if noise is None:
        return "INCONCLUSIVE", ["A has no second round, so its noise is not known: record it again"]
    if noise.mean_kl > _UNHEALTHY_KL:
        return "INCONCLUSIVE", [
            f"A is {noise.mean_kl:.3g} nats from itself: too noisy to hold anything against it. "
            "More prompts do not help: find out what makes it differ from itself (deploy repeat)"
        ]
    return "PASS", [
        f"mean KL {distance.mean_kl:.2g} nats over {distance.positions} positions; A is {noise.mean_kl:.2g} from itself"
    ]


def _missing(arm: Arm) -> int:
    return len(arm.header["planned"]) - len(arm.scores)


def _said(gate: Gate) -> str:
    noise = "" if gate.noise is None else f"; A against itself {gate.noise:.3g}"
    return f"{gate.name}: {gate.value:.3g}, at most {gate.limit:.3g}{noise}"


def _answers(a: Arm, b: Arm, how_a: Round, how_b: Round) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Greedy answers of both by class (EQUAL, NEAR_TIE, HARD), and where each pair parts."""
    one, other = a.round(how_a), b.round(how_b)
    classes: Counter[str] = Counter()
    parted: list[Divergence] = []
    for name in one:
        if name in other:
            found = first_divergence(name, one[name], other[name])
            classes["EQUAL" if found is None else "HARD" if found.hard else "NEAR_TIE"] += 1
            parted += [found] if found else []
    return classes, [asdict(d) for d in parted]


def _warnings(arm: Arm) -> list[str]:
    request = arm.header["request"]
    warning = topk_warning("parity", request["lengths"], request["index_topk"])
    return [f"warning: {warning}"] if warning else []


def _worst(rows: Sequence[Position]) -> list[dict[str, Any]]:
    ordered = sorted(by_prompt(rows).items(), key=lambda item: -item[1].mean_kl)
    return [{"prompt": name, "mean_kl": d.mean_kl, "max_kl": d.max_kl, "worst": d.worst} for name, d in ordered[:3]]


def _plain(distance: Distance | None) -> dict[str, Any] | None:
    return asdict(distance) if distance is not None else None


def _classes(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}
