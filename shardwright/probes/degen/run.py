"""Degeneration: many questions at ordinary sampling, each answer judged, with the bound that the count allows.

A server that loops in one answer of five passes a smoke test easily. Here a trial that loops is ended at once, so a
bad deployment costs seconds, and every trial is on file before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from shardwright.probes.client import Answer, Request, stream
from shardwright.probes.degen.abort_check import check_abort, check_idle, seen_idle
from shardwright.probes.degen.control import control_trials
from shardwright.probes.degen.detector import Loop, LoopDetector
from shardwright.probes.degen.outcomes import OutcomeClass
from shardwright.probes.degen.plan import DegenPlan
from shardwright.probes.degen.prompts import as_plain_text
from shardwright.probes.degen.report import ABORT_CHECK, CONTROL_TRIAL, PROBE, judge_trial, report_from
from shardwright.probes.journal import Journal, Record
from shardwright.probes.pool import Progress, TrialRun, error_fields
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import Server, fit_request
from shardwright.probes.stored import plan_record
from shardwright.probes.wire import Endpoint, TransportError


def run_degen(
    server: Server,
    plan: DegenPlan,
    journal: Journal,
    *,
    concurrency: int = 1,
    control: Iterable[Record] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> ProbeReport:
    """Run the trials of `plan` that are not on file yet, and judge all of them.

    `control` holds the records of another run of the same method; its trials are copied into this file. Trials whose
    request failed on the way are asked again when a file is taken up. After three such failures in a row the run ends,
    since the server is gone. A curtailed plan ends at the failure that decides. Raises TransportError where the server
    cannot be reached or refuses the request itself, DeployError where the file cannot be written or the control is
    not comparable.
    """
    plan_id = plan.id(server)
    _copy_control(journal, plan_id, control_trials(control, plan))
    keys = [key for phase in plan.phases() for key in phase.keys]
    run = TrialRun(journal, PROBE, plan_id, keys, is_failure=is_failure, on_progress=on_progress)
    if run.waiting:
        idle = seen_idle(server)
        requests = _Requests(server, plan, run.waiting)
        header = {
            **plan.header(),
            "server": server.record(),
            "extensions": requests.extensions,
            "notes": requests.notes,
        }
        first = check_abort(server, requests.fitted(run.waiting[0]), idle)
        _keep_check(journal, plan_id, first)
        _ask_phases(server, plan, requests, run, header, concurrency)
        if idle and any(one.get("aborted") for one in run.records.values()):
            _keep_check(journal, plan_id, check_idle(server))
    elif (plan_record(journal.records, plan_id) or {}).get("planned") != keys:
        journal.append("plan", {"probe": PROBE, "plan": plan_id, **plan.header(), "server": server.record()})
    report = report_from(journal.records, plan_id, str(journal.path))
    if run.waiting:
        decided = report.verdict == "FAIL" and plan.rule == "curtailed"
        complete = decided or report.trials == plan.planned
        journal.append("result", {**report.to_json(), "plan": plan_id, "complete": complete})
    return report


def ask(endpoint: Endpoint, request: Request) -> tuple[Answer, Loop | None]:
    """Stream one answer and end it at its first exact loop. Raises TransportError."""
    detector = LoopDetector()
    found: list[Loop] = []

    def on_tokens(tokens: Sequence[Hashable]) -> bool:
        loop = detector.push_all(tokens)
        if loop is not None:
            found.append(loop)
        return loop is not None

    answer = stream(endpoint, request, on_tokens)
    return answer, found[0] if found else None


def is_failure(record: Record) -> bool:
    """Whether a stored trial counts against the model, by the class it got when it was asked."""
    return OutcomeClass(record["class"]).degenerate


def _ask_phases(
    server: Server, plan: DegenPlan, requests: _Requests, run: TrialRun, header: Mapping[str, Any], concurrency: int
) -> None:
    def enough() -> bool:
        return plan.rule == "curtailed" and run.failures >= plan.curtailed.fail_at

    for phase in plan.phases():
        side = phase.concurrency or concurrency

        def trial(key: str, side: int = side) -> Record:
            return _trial(server, requests, plan, key, side)

        if not run.work(trial, side, header=header, enough=enough, only=phase.keys):
            return


class _Requests:
    """The requests of a plan as this server takes them, found out with one request for each task."""

    def __init__(self, server: Server, plan: DegenPlan, keys: Sequence[str]) -> None:
        self._model = server.model
        self._plan = plan
        self._plain = plan.api == "completions"
        self.extensions = True
        self.notes: list[str] = []
        for task in ("short", "agent", "long"):
            first = next((key for key in keys if key.startswith(task)), None)
            if first is not None:
                self._fit(server.endpoint, first, task == "agent")

    def fitted(self, key: str) -> Request:
        request = replace(self._plan.request(self._model, key), extensions=self.extensions)
        if self._plain and request.messages:
            request = replace(request, prompt=as_plain_text(request.messages), messages=())
        return request

    def _fit(self, endpoint: Endpoint, key: str, transcript: bool) -> None:
        try:
            self.extensions = fit_request(endpoint, self.fitted(key)).extensions
        except TransportError as error:
            if not transcript or self._plain or error.status not in (400, 422):
                raise
            self._plain = True
            self.extensions = fit_request(endpoint, self.fitted(key)).extensions
            self.notes.append(f"note: transcripts go as plain text, since tool messages were refused: {error.detail}")


def _trial(server: Server, requests: _Requests, plan: DegenPlan, key: str, concurrency: int) -> Record:
    request, prompt = requests.fitted(key), plan.prompt(key)
    asked: Record = {
        "task": prompt.task,
        "concurrency": concurrency,
        "seed": request.sampler.seed,
        "prompt_id": prompt.id,
        "prompt": prompt.text,
        "expect": list(prompt.expect),
        "scripts": list(prompt.scripts),
    }
    try:
        answer, loop = ask(server.endpoint, request)
    except TransportError as error:
        return asked | error_fields(error)
    record = asked | _answer_fields(answer, loop)
    outcome = judge_trial(record)
    return record | {"class": outcome.outcome.value, "detail": outcome.detail}


def _answer_fields(answer: Answer, loop: Loop | None) -> Record:
    return {
        "finish_reason": answer.finish_reason,
        "aborted": answer.aborted,
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tokens": answer.tokens,
        "token_source": answer.token_source,
        "loop": asdict(loop) if loop else None,
        "usage": asdict(answer.usage) if answer.usage else None,
        "ttft_s": answer.ttft_s,
        "elapsed_s": answer.elapsed_s,
    }


def _copy_control(journal: Journal, plan_id: str, trials: Sequence[Record]) -> None:
    """Control trials stand in the same file, so that its P value can be computed from it alone."""
    kept = {one["trial"] for one in journal.records if one["kind"] == CONTROL_TRIAL and one.get("plan") == plan_id}
    for trial in trials:
        if trial["trial"] not in kept:
            content = {name: value for name, value in trial.items() if name != "kind"}
            journal.append(CONTROL_TRIAL, {**content, "plan": plan_id, "control_plan": trial.get("plan")})


def _keep_check(journal: Journal, plan_id: str, check: dict[str, Any] | None) -> None:
    if check is not None:
        journal.append(ABORT_CHECK, {"plan": plan_id, **check})
