"""Quality: some 45 checks with one right answer each, of the engine and of the model, each judged from its record.

A check that the server cannot be asked is not applicable, with the reason, and never counts as passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.journal import Journal, Record
from shardwright.probes.pool import Progress, TrialRun, finished_trials, lost_trials
from shardwright.probes.quality.ask import Asker, RefusedError
from shardwright.probes.quality.model import ECHO_ALONE, ECHO_BESIDE, ask_echo, wrong_ids
from shardwright.probes.quality.plan import BESIDE, REPEATED, QualityPlan, check_of, id_of, number_of
from shardwright.probes.quality.prompts import ECHO_IDS
from shardwright.probes.quality.views import Judgement, failed, not_applicable, view
from shardwright.probes.report import ProbeReport, Verdict
from shardwright.probes.server import Server
from shardwright.probes.stats import clopper_pearson_upper
from shardwright.probes.stored import plan_on_file
from shardwright.probes.wire import TransportError

PROBE = "quality"
_LOST_SHARE = 0.02
_SECOND_HALF = 1_000_000
"""Added to the number of an echo beside others, so that its ids are not those of the echo alone."""


def run_quality(
    server: Server,
    plan: QualityPlan,
    journal: Journal,
    *,
    concurrency: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProbeReport:
    """Ask what is not on file yet and judge everything.

    `concurrency` is for the checks that do not bring their own; above 1 an engine may rightly answer a little
    differently each time. Raises TransportError where nobody answers, DeployError where the server cannot chat.
    """
    _require_chat(server)
    plan_id, keys = plan.id(server), plan.trials()
    beside = [key for key in keys if key.startswith(ECHO_BESIDE.id)]
    header = {"request": asdict(plan), "trials": keys, "server": server.record()}
    found: list[Record] = [{"kind": "plan", "plan": plan_id, **header}]
    done = 0
    for part, at_once in (([key for key in keys if key not in beside], concurrency), (beside, BESIDE)):
        shown = _shifted(on_progress, done, len(keys))
        run = TrialRun(journal, PROBE, plan_id, part, is_failure=_is_failure, on_progress=shown)
        run.work(lambda key: _trial(server, plan, key), at_once, header=header)
        done += len(part)
        found += [*run.records.values(), *run.errors]
    report = report_from(found, plan_id, str(journal.path))
    journal.append("result", report.to_json())
    return report


def judge_trial(record: Mapping[str, Any]) -> Judgement:
    """Judge one stored trial again, from its exchanges alone."""
    check = check_of(str(record["trial"]))
    if check is None:
        return not_applicable(f"no check {record['trial']!r} is known")
    if record.get("absent"):
        return not_applicable(f"the server has no {record['absent']}")
    exchanges = record.get("exchanges") or []
    if not exchanges:
        return Judgement("ERROR", str(record.get("detail", "no answer is on file")))
    last = exchanges[-1]
    if last["status"] != 200:
        return failed(f"request {len(exchanges)} to {last['request']['path']} was refused: {last.get('error', '')}")
    try:
        return check.judge(exchanges)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return failed(f"the answer has not the form of the interface ({type(error).__name__}: {error})")


def report_from(records: Iterable[Record], plan_id: str, file: str = "") -> ProbeReport:
    """The report of a plan from what is on file, every trial judged again."""
    records = list(records)
    header = plan_on_file(records, plan_id, PROBE)
    planned: list[str] = header["trials"]
    trials = {key: record for key, record in finished_trials(records, plan_id).items() if key in planned}
    lost = lost_trials(records, plan_id, trials)
    judged = {key: judge_trial(record) for key, record in trials.items()}
    known = dict(header["request"].get("known", ()))
    wrong = {key: judgement for key, judgement in judged.items() if judgement.outcome == "FAIL"}
    faults = {key: judgement for key, judgement in wrong.items() if id_of(key) not in known}
    faults |= {key: one for key, one in judged.items() if _is_missed(key, one, header["request"]["required"])}
    verdict, reasons = _verdict(planned, judged, faults, lost)
    reasons += [
        f"{key}: {judgement.detail}; known, and not held against this deployment: {known[id_of(key)]}"
        for key, judgement in wrong.items()
        if key not in faults
    ]
    unusable = len(planned) - len(judged) + sum(one.outcome == "BUDGET" for one in judged.values())
    return ProbeReport(
        probe=PROBE,
        verdict=verdict,
        reasons=tuple(reasons),
        trials=len(trials),
        failures=len(faults),
        errors=len(lost),
        classes=dict(sorted(Counter(judgement.outcome for judgement in judged.values()).items())),
        plan=plan_id,
        file=file,
        more_trials=unusable or None if verdict == "INCONCLUSIVE" else None,
        numbers={
            "planned": len(planned),
            "engine_only": header["request"]["engine_only"],
            "echo": {check.id: _echo_count(check.id, trials) for check in (ECHO_ALONE, ECHO_BESIDE)},
            "tool_calls": _tool_count(judged),
            "checks": [_row(key, judgement) for key, judgement in judged.items()],
        },
    )


def _verdict(
    planned: list[str], judged: Mapping[str, Judgement], faults: Mapping[str, Judgement], lost: Mapping[str, Record]
) -> tuple[Verdict, list[str]]:
    if not judged:
        return "FAULT", [f"no request was answered: {next(iter(lost.values()))['detail']}" if lost else "nothing asked"]
    if faults:
        return "FAIL", [f"{key}: {judgement.detail}" for key, judgement in faults.items()]
    undecided = [f"{key}: {one.detail}" for key, one in judged.items() if one.outcome == "BUDGET"]
    if len(planned) - len(judged) > _LOST_SHARE * len(planned):
        undecided += [f"{key} has no answer: {record['detail']}" for key, record in lost.items()]
        undecided = undecided or [f"{len(planned) - len(judged)} of {len(planned)} trials were not asked"]
    if undecided:
        return "INCONCLUSIVE", undecided
    if not any(one.outcome == "PASS" for one in judged.values()):
        return "INCONCLUSIVE", ["no check is applicable"]
    return "PASS", [f"{key}: {one.detail}" for key, one in judged.items() if one.outcome == "NOT_APPLICABLE"]


def _is_missed(key: str, judgement: Judgement, required: Iterable[str]) -> bool:
    """Whether a check does not apply although the plan requires what it needs."""
    check = check_of(key)
    return judgement.outcome == "NOT_APPLICABLE" and check is not None and check.needs in required


def _echo_count(check_id: str, trials: Mapping[str, Record]) -> dict[str, Any]:
    """Ids asked for and ids that came back wrong, with the one-sided 95 % bound of their rate."""
    asked = wrong = 0
    for key, record in trials.items():
        if id_of(key) == check_id and record["class"] in ("PASS", "FAIL"):
            exchange = record["exchanges"][0]
            ids = exchange["request"]["messages"][0]["content"].splitlines()[1:]
            asked += ECHO_IDS
            wrong += len(wrong_ids(ids, view(exchange).content))
    return {"ids": asked, "wrong": wrong, "upper_bound": clopper_pearson_upper(wrong, asked)}


def _tool_count(judged: Mapping[str, Judgement]) -> dict[str, Any]:
    """Freely chosen tool calls and how many were wrong, with the one-sided 95 % bound of their rate."""
    outcomes = [one.outcome for key, one in judged.items() if id_of(key) == REPEATED]
    wrong, asked = outcomes.count("FAIL"), outcomes.count("FAIL") + outcomes.count("PASS")
    return {"trials": asked, "wrong": wrong, "upper_bound": clopper_pearson_upper(wrong, asked)}


def _row(key: str, judgement: Judgement) -> dict[str, Any]:
    check = check_of(key)
    where = {} if check is None else {"category": check.category, "role": check.role}
    return {"trial": key, **where, "class": judgement.outcome, "detail": judgement.detail}


def _trial(server: Server, plan: QualityPlan, key: str) -> Record:
    check = check_of(key)
    assert check is not None
    record: Record = {"trial": key, "category": check.category, "role": check.role}
    if check.needs in ("tools", "responses") and not getattr(server.capabilities, check.needs):
        record["absent"] = check.needs
    else:
        asker = Asker(server, extensions=server.capabilities.extensions, max_tokens=plan.max_tokens)
        try:
            if check.id in (ECHO_ALONE.id, ECHO_BESIDE.id):
                ask_echo(asker, number_of(key) + (_SECOND_HALF if check.id == ECHO_BESIDE.id else 0))
            else:
                check.ask(asker)
        except RefusedError:
            pass
        except TransportError as error:
            raise TransportError(error.kind, f"{check.id}: {error.detail}", status=error.status) from None
        record |= {"exchanges": asker.exchanges, "lost": asker.lost}
    judgement = judge_trial(record)
    return record | {"class": judgement.outcome, "detail": judgement.detail}


def _require_chat(server: Server) -> None:
    if not server.capabilities.chat:
        raise DeployError(
            f"{server.endpoint.base_url} does not answer a chat",
            why="the model has no chat template, or the server fails; these checks are asked through chat",
            fix="see what deploy smoke says",
            code=ExitCode.HARNESS,
        )


def _is_failure(record: Record) -> bool:
    return bool(record["class"] == "FAIL")


def _shifted(
    on_progress: Callable[[Progress], None] | None, done: int, planned: int
) -> Callable[[Progress], None] | None:
    """Progress of a part as progress of the whole."""
    if on_progress is None:
        return None
    return lambda progress: on_progress(replace(progress, done=progress.done + done, planned=planned))
