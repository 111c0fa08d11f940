"""Trials in threads: what is on file is not asked again, every answer is on file before it counts.

Each trial is one JSON line with its key, plan, class and detail. After three lost trials in a row the run ends, since
the server is gone; lost trials are asked again when the file is taken up, and both attempts stay on file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shardwright.probes.journal import Journal, Record
from shardwright.probes.wire import TransportError

Key = int | str
T = TypeVar("T")

ERROR = "ERROR"
"""The class of a trial that brought no complete answer: neither a pass nor a failure."""

_ERRORS_IN_A_ROW = 3


@dataclass(frozen=True)
class Progress:
    """How far a run is. `eta_s` is None until one trial has finished in this run."""

    done: int
    planned: int
    failures: int
    errors: int
    elapsed_s: float
    eta_s: float | None
    last: Record | None


def run_trials(
    keys: Sequence[T],
    work: Callable[[T], Record],
    concurrency: int,
    keep: Callable[[T, Record], bool | None],
) -> bool:
    """Call `work` for each key in up to `concurrency` threads, in order, and `keep` under one lock with what came back.

    Ends early after three records in a row of class ERROR, and where `keep` returns True (enough is known); trials
    that run then are still kept. Returns whether every key was called. Whatever `work` or `keep` raises ends the run
    and is raised here; after that nothing is kept any more.
    """
    crew = _Crew(keys, work, keep)
    # Daemon threads, joined in slices: Ctrl-C ends the process at once, whatever the requests wait for.
    threads = [threading.Thread(target=crew.worker, daemon=True) for _ in range(min(concurrency, len(keys)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except BaseException as error:
        crew.fail(error)
        raise
    if crew.failure is not None:
        raise crew.failure
    return crew.all_called


def finished_trials(records: Iterable[Record], plan_id: str) -> dict[Any, Record]:
    """The trials of a plan that have an answer, by key; a trial on file twice counts once, as first written."""
    trials: dict[Any, Record] = {}
    for record in records:
        mine = record["kind"] == "trial" and record.get("plan") == plan_id
        name, outcome = record.get("trial"), record.get("class")
        if mine and isinstance(name, int | str) and isinstance(outcome, str) and outcome != ERROR:
            trials.setdefault(name, record)
    return trials


def lost_trials(records: Iterable[Record], plan_id: str, answered: Mapping[Any, Record]) -> dict[Any, Record]:
    """The last attempt of each trial of a plan that never got an answer, by key."""
    lost: dict[Any, Record] = {}
    for record in records:
        if record["kind"] == "trial" and record.get("plan") == plan_id and record.get("class") == ERROR:
            lost[record.get("trial")] = record
    return {name: record for name, record in lost.items() if name not in answered}


def error_fields(error: TransportError) -> Record:
    """Class, detail and cause of a trial whose request brought no complete answer."""
    cause = {"kind": error.kind, "status": error.status, "detail": error.detail}
    return {"class": ERROR, "detail": error.detail, "error": cause}


def utc_now() -> str:
    """The time of day for records, ISO 8601 with milliseconds."""
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds")


class TrialRun:
    """The trials of one plan: those on file, those asked now, and those that were lost.

    `ask(key)` returns the fields of one record, with at least `class` and `detail`, or raises TransportError, which
    makes it an ERROR. `probe`, `plan`, `trial` and `at` are added here.
    """

    def __init__(
        self,
        journal: Journal,
        probe: str,
        plan_id: str,
        keys: Sequence[Key],
        *,
        is_failure: Callable[[Record], bool],
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._journal = journal
        self._probe = probe
        self._plan_id = plan_id
        self._keys = list(keys)
        self._is_failure = is_failure
        self._on_progress = on_progress or (lambda _: None)
        wanted = set(self._keys)
        on_file = finished_trials(journal.records, plan_id)
        self.records: dict[Any, Record] = {name: record for name, record in on_file.items() if name in wanted}
        self.errors: list[Record] = []
        """Trials of this run without an answer."""
        self.taken_up = len(self.records)
        """Trials that were on file before."""
        self.waiting: list[Any] = [name for name in self._keys if name not in self.records]
        self._began_s = time.perf_counter()
        self._begun = False
        self._lost_in_a_row = 0

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began_s

    @property
    def failures(self) -> int:
        return sum(self._is_failure(record) for record in self.records.values())

    def work(
        self,
        ask: Callable[[Any], Record],
        concurrency: int,
        *,
        header: Mapping[str, Any] | None = None,
        enough: Callable[[], bool] | None = None,
        only: Collection[Key] | None = None,
    ) -> bool:
        """Ask what is waiting, or those of it that are in `only`; returns whether all of that was asked.

        `header` goes on file first, as the record `plan`; `enough` may end the run early.
        """
        if self._lost_in_a_row >= _ERRORS_IN_A_ROW or (enough is not None and enough()):
            return False
        wanted = [name for name in self.waiting if only is None or name in only]
        if not wanted:
            return True
        if not self._begun:
            self._begun = True
            self._journal.append(
                "plan", {"probe": self._probe, "plan": self._plan_id, "at": utc_now()} | dict(header or {})
            )
            self._began_s = time.perf_counter()
            self._on_progress(self._progress(None))

        def trial(name: Key) -> Record:
            record: Record = {"probe": self._probe, "plan": self._plan_id, "trial": name, "at": utc_now()}
            try:
                return record | ask(name)
            except TransportError as error:
                return record | error_fields(error)

        def keep(name: Key, record: Record) -> bool:
            written = self._journal.append("trial", record)
            if written["class"] == ERROR:
                self.errors.append(written)
                self._lost_in_a_row += 1
            else:
                self.records[name] = written
                self._lost_in_a_row = 0
            self._on_progress(self._progress(written))
            return enough is not None and enough()

        return run_trials(wanted, trial, concurrency, keep)

    def _progress(self, last: Record | None) -> Progress:
        done_now = len(self.records) - self.taken_up + len(self.errors)
        left = len(self._keys) - len(self.records) - len(self.errors)
        return Progress(
            done=len(self.records) + len(self.errors),
            planned=len(self._keys),
            failures=self.failures,
            errors=len(self.errors),
            elapsed_s=self.elapsed_s,
            eta_s=self.elapsed_s / done_now * left if done_now else None,
            last=last,
        )


class _Crew:
    """The state that the threads of one run share."""

    def __init__(
        self, keys: Sequence[Any], work: Callable[[Any], Record], keep: Callable[[Any, Record], bool | None]
    ) -> None:
        self.failure: BaseException | None = None
        self._waiting = list(reversed(keys))
        self._work = work
        self._keep = keep
        self._errors_in_a_row = 0
        self._enough = False
        self._lock = threading.Lock()

    @property
    def all_called(self) -> bool:
        return not self._waiting

    def worker(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self.failure or self._enough or self._errors_in_a_row >= _ERRORS_IN_A_ROW:
                    return
                name = self._waiting.pop()
            try:
                record = self._work(name)
                with self._lock:
                    if self.failure is not None:
                        return
                    self._errors_in_a_row = self._errors_in_a_row + 1 if record["class"] == ERROR else 0
                    self._enough = bool(self._keep(name, record)) or self._enough
            except BaseException as error:
                self.fail(error)
                return

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = self.failure or error
