"""Two arms side by side and one verdict; pure over what the bundles hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shardwright.campaign.overall import DECLARED_OUT, standing
from shardwright.errors import ExitCode, UsageError

AbVerdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "CONTROL_UNHEALTHY"]
RowVerdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
Records = Sequence[dict[str, Any]]
Cells = tuple[str, str]

EXIT_CODES: Mapping[AbVerdict, ExitCode] = {
    "PASS": ExitCode.OK,
    "FAIL": ExitCode.DRIFT,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
    "CONTROL_UNHEALTHY": ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True)
class ArmEvidence:
    """What one bundle holds: its JSON files by name, and trials by probe."""

    manifest: Mapping[str, Any]
    image: Mapping[str, Any]
    plan: Mapping[str, Any]
    reports: Sequence[Mapping[str, Any]]
    trials: Mapping[str, Records]

    def report(self, probe: str) -> Mapping[str, Any] | None:
        return next((report for report in self.reports if report["probe"] == probe), None)


@dataclass(frozen=True)
class Row:
    """One metric of both arms. A row with a `verdict` is a gate; one without is only reported."""

    group: str
    metric: str
    cells: Cells
    """What the control and the candidate have."""
    verdict: RowVerdict | None = None
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """All rows, the verdict, and what it rests on; one line each."""

    verdict: AbVerdict
    reasons: tuple[str, ...]
    rows: tuple[Row, ...]

    def as_data(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "reasons": list(self.reasons), "rows": [asdict(row) for row in self.rows]}


def compare_arms(control: ArmEvidence, candidate: ArmEvidence) -> Comparison:
    """Raises UsageError where the arms cannot be compared: another model, image, prompt set or sampler.

    CONTROL_UNHEALTHY where a probe fails on the control, for then only the absolute gates speak; FAIL where any gate
    fails; INCONCLUSIVE where any is so or is missing; else PASS, which needs at least one gate.
    """
    refuse_incomparable(control, candidate)
    rows = [row for build in _BUILDERS for row in build(control, candidate)]
    return Comparison(*_overall(control, candidate, rows), rows=tuple(rows))


def refuse_incomparable(control: ArmEvidence, candidate: ArmEvidence) -> None:
    """UsageError naming the first thing besides the topology in which the arms differ."""
    for what, read in _IDENTITY:
        left, right = read(control), read(candidate)
        if left != right:
            raise UsageError(
                f"the arms are not comparable: {what} differs ({left!r}, {right!r})",
                why="a difference in the answers could come from either",
                fix="run both arms with the same model, engine and probes: deploy rebalance control",
            )
    for probe in sorted(control.trials.keys() & candidate.trials.keys()):
        left, right = _asked(control.trials[probe]), _asked(candidate.trials[probe])
        differing = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
        if left and right and differing:
            raise UsageError(
                f"the arms are not comparable: {probe} was asked differently ({', '.join(differing)})",
                why="paired trials need the same prompts and sampler in both arms",
                fix="deploy rebalance control, then boot and verify again",
            )


_IDENTITY: tuple[tuple[str, Callable[[ArmEvidence], Any]], ...] = (
    ("the model", lambda arm: arm.manifest["model"]["path"]),
    ("the model's revision", lambda arm: arm.manifest["model"]["revision"]),
    ("the served model", lambda arm: arm.manifest["model"]["served_as"]),
    ("the engine", lambda arm: arm.image.get("identity")),
    ("the engine's version", lambda arm: arm.image.get("vllm")),
)


def _asked(records: Records) -> dict[str, Any]:
    """What the plan of a probe asks, without what names the deployment."""
    header = next((record for record in records if record.get("kind") == "plan"), {})
    request = header.get("request")
    return {key: value for key, value in request.items() if key != "deployment"} if isinstance(request, Mapping) else {}


def _overall(control: ArmEvidence, candidate: ArmEvidence, rows: Sequence[Row]) -> tuple[AbVerdict, tuple[str, ...]]:
    unhealthy = [f"control: {report['probe']}: {_first(report)}" for report in control.reports if _fails(report)]
    failed = [f"{row.metric}: {row.reason}" for row in rows if row.verdict == "FAIL"]
    open_ = [f"{row.metric}: {row.reason}" for row in rows if row.verdict == "INCONCLUSIVE"]
    if unhealthy:
        return "CONTROL_UNHEALTHY", (*unhealthy, *failed)
    if failed:
        return "FAIL", tuple(failed)
    if open_:
        return "INCONCLUSIVE", tuple(open_)
    gates = [row for row in rows if row.verdict]
    if not gates:
        return "INCONCLUSIVE", ("nothing was asked that decides",)
    return "PASS", (f"{len(gates)} of {len(gates)} gates pass",)


def _memory_rows(control: ArmEvidence, candidate: ArmEvidence) -> Iterator[Row]:
    for what, side in (("predicted", "predicted"), ("observed", "actual")):
        tokens = [_pool(arm, side) for arm in (control, candidate)]
        if any(tokens):
            yield Row("memory", f"pool {what}, tokens", (_number(tokens[0]), _number(tokens[1])))
    ranks = [_ranks(arm) for arm in (control, candidate)]
    for key in sorted(ranks[0].keys() | ranks[1].keys()):
        cells = _number(ranks[0].get(key), 2), _number(ranks[1].get(key), 2)
        yield Row("memory", f"KV memory, stage {key[0]} rank {key[1]}, GiB", cells)


def _pool(arm: ArmEvidence, side: str) -> float | None:
    rows = arm.plan.get("differences") or []
    found: float | None = next((row[side] for row in rows if row["what"] == "pool tokens"), None)
    if found is None and side == "predicted":
        pool = (arm.plan.get("predicted") or {}).get("pool") or {}
        found = pool.get("pool_tokens")
    return found


def _ranks(arm: ArmEvidence) -> dict[tuple[int, int], float]:
    ranks = (arm.plan.get("observed") or {}).get("ranks") or []
    return {(rank["stage"], rank["tensor_rank"]): rank["available_gib"] for rank in ranks}


def _verdict_rows(control: ArmEvidence, candidate: ArmEvidence) -> Iterator[Row]:
    """Each probe's own verdict is a gate on the candidate."""
    for report in candidate.reports:
        probe, verdict = str(report["probe"]), standing(report)
        decided: RowVerdict | None = None
        if verdict != DECLARED_OUT:
            decided = "PASS" if verdict == "PASS" else "FAIL" if verdict == "FAIL" else "INCONCLUSIVE"
        yield Row("probes", probe, (standing(control.report(probe)), verdict), decided, _first(report))


def _degen_rows(control: ArmEvidence, candidate: ArmEvidence) -> Iterator[Row]:
    from shardwright.probes.stats import fisher_one_sided

    for probe in ("degen", "degen-long"):
        a, b = control.report(probe), candidate.report(probe)
        if a is None or b is None or not a["trials"] or not b["trials"]:
            continue
        cells = _failure_rate(a), _failure_rate(b)
        p = fisher_one_sided(b["failures"], b["trials"], a["failures"], a["trials"])
        worse = p < 0.05
        yield Row(
            "degeneration",
            f"{probe}, degenerate trials",
            cells,
            verdict="FAIL" if worse else "PASS",
            reason=f"Fisher one-sided p = {p:.2e}" + ("" if worse else ", no evidence of a difference at this n"),
        )


def _needle_rows(control: ArmEvidence, candidate: ArmEvidence) -> Iterator[Row]:
    from shardwright.probes.needle.judge import judge_trial
    from shardwright.probes.stats import mcnemar

    found = [_outcomes(arm.trials.get("needle", ()), judge_trial) for arm in (control, candidate)]
    pairs = found[0].keys() & found[1].keys()
    if not pairs:
        return
    lost = sorted(key for key in pairs if found[0][key] == "EXACT" and found[1][key] not in _NOT_THE_MODEL)
    won = sorted(key for key in pairs if found[1][key] == "EXACT" and found[0][key] not in _NOT_THE_MODEL)
    cells = _share(found[0], pairs, "EXACT"), _share(found[1], pairs, "EXACT")
    p = mcnemar(len(lost), len(won))
    reason = f"{len(lost)} lost, {len(won)} won of {len(pairs)} paired cells, McNemar p = {p:.3g}"
    named = f": {', '.join(lost[:5])}" if lost else ""
    yield Row("needles", "needles found, paired", cells, verdict="FAIL" if lost else "PASS", reason=reason + named)


_NOT_THE_MODEL = ("EXACT", "ERROR", "EMPTY_BUDGET")


def _quality_rows(control: ArmEvidence, candidate: ArmEvidence) -> Iterator[Row]:
    from shardwright.probes.quality.run import judge_trial

    found = [_outcomes(arm.trials.get("quality", ()), judge_trial) for arm in (control, candidate)]
    pairs = found[0].keys() & found[1].keys()
    if not pairs:
        return
    for group, named in (("tools", True), ("quality", False)):
        keys = [key for key in pairs if ("tool" in key) == named]
        if not keys:
            continue
        lost = sorted(key for key in keys if found[0][key] == "PASS" and found[1][key] == "FAIL")
        cells = _share(found[0], keys, "PASS"), _share(found[1], keys, "PASS")
        reason = f"{len(lost)} checks that the control passes fail" + (f": {', '.join(lost[:5])}" if lost else "")
        yield Row(group, f"{group}, checks that pass", cells, verdict="FAIL" if lost else "PASS", reason=reason)


def _speed_rows(control: ArmEvidence, candidate: ArmEvidence) -> Iterator[Row]:
    from shardwright.probes.speed.compare import compare_speed
    from shardwright.probes.speed.report import rows_of

    a, b = (rows_of(arm.trials.get("speed", ())) for arm in (control, candidate))
    if not a or not b:
        return
    scatter = float(_asked(control.trials["speed"]).get("settle_share", 0.0))
    for metric in compare_speed(a, b, scatter):
        cells = _number(metric.control, 2), _number(metric.candidate, 2)
        yield Row("speed", metric.metric, cells, metric.verdict if metric.role == "gate" else None, metric.reason)


def _parity_rows(control: ArmEvidence, candidate: ArmEvidence) -> Iterator[Row]:
    from shardwright.probes.parity.report import compare

    a, b = (arm.trials.get("parity", ()) for arm in (control, candidate))
    if not a or not b:
        return
    report = compare(a, b)
    verdict: RowVerdict = "PASS" if report.verdict == "PASS" else "FAIL" if report.verdict == "FAIL" else "INCONCLUSIVE"
    distance, noise = report.numbers.get("distance") or {}, report.numbers.get("noise") or {}
    cells = f"mean KL {_number(noise.get('mean_kl'), 6)}", f"mean KL {_number(distance.get('mean_kl'), 6)}"
    reason = report.reasons[0] if report.reasons else "within the control's own noise"
    yield Row("parity", "parity, distance against the control's own noise", cells, verdict=verdict, reason=reason)


_BUILDERS: tuple[Callable[[ArmEvidence, ArmEvidence], Iterator[Row]], ...] = (
    _memory_rows,
    _verdict_rows,
    _degen_rows,
    _needle_rows,
    _quality_rows,
    _speed_rows,
    _parity_rows,
)


def _outcomes(records: Records, judge: Callable[[Mapping[str, Any]], Any]) -> dict[str, str]:
    """Class by trial, each judged again; of a trial that was made twice the last counts."""
    trials = [record for record in records if record.get("kind") == "trial"]
    return {str(record["trial"]): str(judge(record).outcome) for record in trials}


def _failure_rate(report: Mapping[str, Any]) -> str:
    return f"{report['failures']}/{report['trials']}, at most {_percent(report.get('upper_bound'))}"


def _share(found: Mapping[str, str], keys: Collection[str], wanted: str) -> str:
    return f"{sum(found[key] == wanted for key in keys)}/{len(keys)}"


def _fails(report: Mapping[str, Any]) -> bool:
    return str(report["verdict"]) == "FAIL"


def _first(report: Mapping[str, Any]) -> str:
    reasons = report.get("reasons") or []
    return str(reasons[0]) if reasons else ""


def _number(value: float | None, digits: int = 0) -> str:
    return "unknown" if value is None else f"{value:,.{digits}f}"


def _percent(rate: float | None) -> str:
    return "unknown" if rate is None else f"{100 * rate:.3g} %"
