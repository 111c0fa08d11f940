"""Degeneration: many short questions at ordinary sampling, each answer judged, with the bound that the count allows.

A server that loops in one answer of five passes a smoke test easily. Here a trial that loops is ended at once, so a
bad deployment costs seconds, and every trial is on file before it counts.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, replace

from shardwright.probes.client import Answer, Request, stream
from shardwright.probes.degen_plan import CONFIDENCE, DegenPlan, DegenResult, Progress
from shardwright.probes.detector import Loop, LoopDetector
from shardwright.probes.journal import Journal, Record
from shardwright.probes.outcomes import OutcomeClass, judge
from shardwright.probes.server import Server, fit_request
from shardwright.probes.stats import clopper_pearson_upper
from shardwright.probes.wire import Endpoint, TransportError

_ERRORS_IN_A_ROW = 3
_JUDGED = frozenset(outcome.value for outcome in OutcomeClass if outcome is not OutcomeClass.ERROR)


def run_degen(
    server: Server,
    plan: DegenPlan,
    journal: Journal,
    *,
    concurrency: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> DegenResult:
    """Run the trials of `plan` that are not on file yet, and judge all of them.

    Trials whose request failed on the way are asked again when a file is taken up. After three such failures in a row
    the run ends, since the server is gone. Raises TransportError where the server cannot be reached or refuses the
    request itself, and DeployError where the file cannot be written.
    """
    run = _Run(server, plan, journal, on_progress)
    run.work(concurrency)
    return run.result()


def finished_trials(records: Iterable[Record], plan_id: str) -> dict[int, Record]:
    """The trials of a plan that have an answer, by index; a trial on file twice counts once, as first written."""
    trials: dict[int, Record] = {}
    for record in records:
        index = record.get("trial")
        mine = record["kind"] == "trial" and record.get("plan") == plan_id and record.get("class") in _JUDGED
        if mine and isinstance(index, int):
            trials.setdefault(index, record)
    return trials


class _Run:
    """One run's shared state; trials run in threads, records are written under the lock."""

    def __init__(
        self, server: Server, plan: DegenPlan, journal: Journal, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._server = server
        self._plan = plan
        self._journal = journal
        self._on_progress = on_progress or (lambda _: None)
        self._plan_id = plan.id(server)
        on_file = finished_trials(journal.records, self._plan_id)
        self._records = {index: record for index, record in on_file.items() if index < plan.trials}
        self._taken_up = len(self._records)
        self._waiting = [index for index in range(plan.trials) if index not in self._records]
        self._errors: list[Record] = []
        self._errors_in_a_row = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._extensions = True
        self._began_s = time.perf_counter()

    def work(self, concurrency: int) -> None:
        if not self._waiting:
            return
        first = self._plan.request(self._server.model, self._waiting[0])
        self._extensions = fit_request(self._server.endpoint, first).extensions
        self._journal.append("plan", self._header())
        self._began_s = time.perf_counter()
        self._on_progress(self._progress(None))
        # Daemon threads, joined in slices: Ctrl-C ends the process at once, whatever the requests wait for.
        workers = min(concurrency, len(self._waiting))
        threads = [threading.Thread(target=self._worker, daemon=True) for _ in range(workers)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
            raise
        if self._failure is not None:
            raise self._failure

    def result(self) -> DegenResult:
        classes = Counter(record["class"] for record in (*self._records.values(), *self._errors))
        per_prompt = {prompt.id: (0, 0) for prompt in self._plan.prompts}
        for index, record in self._records.items():
            name = self._plan.prompt(index).id
            bad, n = per_prompt[name]
            per_prompt[name] = (bad + _is_failure(record), n + 1)
        failures = self._failures()
        result = DegenResult(
            planned=self._plan.trials,
            trials=len(self._records),
            failures=failures,
            errors=len(self._errors),
            upper_bound=clopper_pearson_upper(failures, len(self._records), CONFIDENCE),
            classes=dict(sorted(classes.items())),
            per_prompt=per_prompt,
            plan=self._plan_id,
            file=str(self._journal.path),
            taken_up=self._taken_up,
            elapsed_s=time.perf_counter() - self._began_s,
            last_error=self._errors[-1]["detail"] if self._errors else None,
            examples=tuple(record for _, record in sorted(self._records.items()) if _is_failure(record)),
        )
        if self._taken_up < self._plan.trials:
            self._journal.append("result", {"plan": self._plan_id, **result.to_json()})
        return result

    def _worker(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._failure or self._errors_in_a_row >= _ERRORS_IN_A_ROW:
                    return
                index = self._waiting.pop(0)
            try:
                record = self._trial(index)
                with self._lock:
                    self._keep(index, record)
            except BaseException as error:
                with self._lock:
                    self._failure = self._failure or error
                return

    def _trial(self, index: int) -> Record:
        request = replace(self._plan.request(self._server.model, index), extensions=self._extensions)
        prompt = self._plan.prompt(index)
        record: Record = {
            "plan": self._plan_id,
            "trial": index,
            "seed": request.sampler.seed,
            "prompt_id": prompt.id,
            "prompt": prompt.text,
            "at": _utc_now(),
        }
        try:
            answer, loop = ask(self._server.endpoint, request)
        except TransportError as error:
            failure = {"kind": error.kind, "status": error.status, "detail": error.detail}
            return record | {"class": OutcomeClass.ERROR.value, "detail": error.detail, "error": failure}
        outcome = judge(answer.text, answer.reasoning, answer.finish_reason, loop)
        return record | {"class": outcome.outcome.value, "detail": outcome.detail} | _answer_fields(answer, loop)

    def _keep(self, index: int, record: Record) -> None:
        if self._failure is not None:
            return
        written = self._journal.append("trial", record)
        if written["class"] == OutcomeClass.ERROR:
            self._errors.append(written)
            self._errors_in_a_row += 1
        else:
            self._records[index] = written
            self._errors_in_a_row = 0
        self._on_progress(self._progress(written))

    def _progress(self, last: Record | None) -> Progress:
        elapsed_s = time.perf_counter() - self._began_s
        done_now = len(self._records) - self._taken_up + len(self._errors)
        left = self._plan.trials - len(self._records) - len(self._errors)
        return Progress(
            done=len(self._records) + len(self._errors),
            planned=self._plan.trials,
            failures=self._failures(),
            errors=len(self._errors),
            elapsed_s=elapsed_s,
            eta_s=elapsed_s / done_now * left if done_now else None,
            last=last,
        )

    def _failures(self) -> int:
        return sum(_is_failure(record) for record in self._records.values())

    def _header(self) -> Record:
        return {
            "plan": self._plan_id,
            "at": _utc_now(),
            "server": {
                "base_url": self._server.endpoint.base_url,
                "model": self._server.model,
                "version": self._server.version,
                "started_at": self._server.started_at,
            },
            "extensions": self._extensions,
            "request": asdict(self._plan),
        }


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


def _is_failure(record: Record) -> bool:
    return OutcomeClass(record["class"]).degenerate


def _utc_now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds")
