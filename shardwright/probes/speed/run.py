"""Speed: rounds of streams whose every event is timed, with the server's own counters read around each round.

A round counts only where the counters show that nobody else was served, every answer has the planned length, and the
steps seen agree with the steps counted. What a round says is computed later from its record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from shardwright.probes.client import GREEDY, Answer, Request
from shardwright.probes.journal import Journal, Record
from shardwright.probes.metrics import (
    ACCEPTED,
    DRAFTS,
    PREEMPTIONS,
    PREFIX_HITS,
    Metrics,
    delta,
    deltas_by_label,
    read_metrics,
    require_idle,
)
from shardwright.probes.pool import Progress, TrialRun
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import Server
from shardwright.probes.speed.plan import MANY, Key, SpeedPlan
from shardwright.probes.speed.prompts import filler
from shardwright.probes.speed.report import PROBE, report_from
from shardwright.probes.speed.round import judge_trial, measure, median_step_ms, settled
from shardwright.probes.stored import write_result
from shardwright.probes.stream_client import run_streams
from shardwright.probes.wire import TransportError

GapError = Callable[[int, float, int], float]
"""Streams, period (seconds) and events of each stream to the median error of a gap, as a share of the period."""

_COUNTERS = {
    "requests": "vllm:request_success_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "drafts": DRAFTS,
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": ACCEPTED,
    "preemptions": PREEMPTIONS,
    "hits": PREFIX_HITS,
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_COUNTERS_LAG_S = 2.0
_LOOK_EVERY_S = 0.02
_SHORT_WORDS = 16
_SIZING_WORDS = 256
_CHECK_S = 2.0
_CHECK_EVENTS = (10, 50)
_USUAL_PERIOD_S = 0.02


def run_speed(
    server: Server,
    plan: SpeedPlan,
    journal: Journal,
    *,
    concurrency: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    gap_error: GapError | None = None,
) -> ProbeReport:
    """Measure what is not on file yet and report all of it.

    Rounds go one after another whatever `concurrency` says: the plan names its own. `gap_error` checks the client;
    by default against a paced server on this machine. Raises TransportError where nobody answers, DeployError
    (exit 4) for a busy server or one that was started anew in between.
    """
    del concurrency
    require_idle(server.endpoint)
    run = _Run(server, plan, gap_error or _measured_gap_error)
    keys = {key.name: key for key in plan.trials(server.capabilities.max_model_len)}
    plan_id = plan.id(server)
    trials = TrialRun(
        journal,
        PROBE,
        plan_id,
        list(keys),
        is_failure=lambda record: bool(record["class"] != "OK"),
        on_progress=on_progress,
    )
    header = {"request": asdict(plan), "spec": plan.spec(), "trials": list(keys), "server": server.record()}

    def ask(name: str) -> Record:
        record = run.trial(keys[name], trials.records)
        if record["class"] == "CONTAMINATED":
            journal.append("discarded", {"probe": PROBE, "plan": plan_id, "trial": name, **record})
            require_idle(server.endpoint)
            record = run.trial(keys[name], trials.records)
        return record

    trials.work(ask, 1, header=header)
    on_file: Record = {"kind": "plan", "plan": plan_id, **header}
    report = report_from([on_file, *trials.records.values(), *trials.errors], plan_id, str(journal.path))
    write_result(journal, report, len(keys))
    return report


@dataclass(frozen=True)
class _Counted:
    """Streams sent together, the tokens they say they brought, and how far the server's counters went meanwhile."""

    streams: list[Record]
    made: int
    metrics: dict[str, Any] | None

    def counters(self) -> dict[str, Any]:
        return {"asked": len(self.streams), "made": self.made, "metrics": self.metrics}


class _Run:
    """Asks for rounds; remembers which numbers of streams are warm."""

    def __init__(self, server: Server, plan: SpeedPlan, gap_error: GapError) -> None:
        self._server = server
        self._plan = plan
        self._gap_error = gap_error
        self._warm: dict[int, dict[str, Any]] = {}
        self._salts = 0
        self._salt = f"speed-{time.time_ns():x}"
        self._tokens_per_word: float | None = None

    def trial(self, key: Key, on_file: Mapping[Any, Record]) -> Record:
        """One trial, judged. Raises TransportError where a stream is lost."""
        if key.test == "self-check":
            record = self._self_check(key, on_file)
        elif key.test == "prefill":
            record = self._prefill(key)
        else:
            record = self._decode(key)
        record |= {"test": key.test, "concurrency": key.concurrency, "spec": self._plan.spec()}
        outcome = judge_trial(record)
        return record | {"class": outcome.outcome, "detail": outcome.detail}

    def _decode(self, key: Key) -> Record:
        warm_up = self._warm_up(key.concurrency)
        counted = self._streams(self._plan.requests(key, self._server, self._next_salt()))
        return {
            "prompt": key.prompt,
            "sampler": key.sampler,
            "round": key.round,
            "max_tokens": self._plan.max_tokens,
            "warm_up": warm_up,
            "streams": counted.streams,
            **counted.counters(),
        }

    def _warm_up(self, level: int) -> dict[str, Any]:
        """Rounds of the same shape until two in a row take the same time; their medians, and whether they settled."""
        if level not in self._warm:
            plan, key = self._plan, Key("decode", level, MANY)
            steps: list[float] = []
            while len(steps) < plan.warm_up_most:
                counted = self._streams(plan.requests(key, self._server, self._next_salt()))
                steps.append(round(median_step_ms(counted.streams), 4))
                if len(steps) >= plan.warm_up_least and settled(steps, plan.settle_share):
                    break
            self._warm[level] = {"steps_ms": steps, "settled": settled(steps, plan.settle_share)}
        return self._warm[level]

    def _prefill(self, key: Key) -> Record:
        if self._tokens_per_word is None:
            self._tokens_per_word = self._one_token(_SIZING_WORDS).streams[0]["prompt_tokens"] / _SIZING_WORDS
        short = self._one_token(_SHORT_WORDS).streams[0]
        counted = self._one_token(int(key.tokens / self._tokens_per_word))
        long = counted.streams[0]
        return {
            "round": key.round,
            "target_tokens": key.tokens,
            "prompt_tokens": long["prompt_tokens"],
            "ttft_s": long["ttft_s"],
            "short_ttft_s": short["ttft_s"],
            **counted.counters(),
        }

    def _one_token(self, words: int) -> _Counted:
        """One stream of one token for a prompt that no cache holds. Raises TransportError."""
        request = Request(
            self._server.model,
            filler(words),
            self._plan.api,
            1,
            GREEDY,
            self._server.capabilities.extensions,
            fields={"cache_salt": self._next_salt()} if self._server.capabilities.cache_salt else {},
        )
        counted = self._streams([request])
        if not counted.streams[0]["prompt_tokens"]:
            raise TransportError("protocol", "a stream that was asked for usage gives none")
        return counted

    def _self_check(self, key: Key, on_file: Mapping[Any, Record]) -> Record:
        rounds = [
            measure(record)
            for record in on_file.values()
            if record["test"] == "decode" and record["concurrency"] == key.concurrency and record["class"] == "OK"
        ]
        gaps = [gap for one in rounds for gap in one.itl_ms]
        period_s = round(median(gaps) / 1000, 6) if gaps else _USUAL_PERIOD_S
        # A stamp is right to some 50 us, whatever the period: below that nothing could be said.
        period_s = max(period_s, 0.001)
        events = int(min(max(_CHECK_S / period_s, _CHECK_EVENTS[0]), _CHECK_EVENTS[1]))
        error = self._gap_error(key.concurrency, period_s, events)
        return {"period_s": period_s, "events": events, "gap_error": round(error, 5)}

    def _streams(self, requests: list[Request]) -> _Counted:
        """The times of streams sent together, and the server's counters around them. Raises the first TransportError.

        Whatever is asked waits until it is counted, warm-up too: else it would show in the counters of what comes next.
        """
        before = read_metrics(self._server.endpoint)
        answers = run_streams(self._server.endpoint, requests)
        streams = []
        for answer in answers:
            if isinstance(answer, TransportError):
                raise answer
            if not answer.token_events:
                raise TransportError("protocol", "a stream brought no token")
            streams.append(_stream_record(answer))
        first = min(stream["sent_s"] for stream in streams)
        made = sum(stream["completion_tokens"] or 0 for stream in streams)
        return _Counted(
            [stream | {"sent_s": round(stream["sent_s"] - first, 6)} for stream in streams],
            made,
            self._counted(before, len(streams), made),
        )

    def _counted(self, before: Metrics | None, asked: int, made: int) -> dict[str, Any] | None:
        """The counters' way since `before`; they may lag behind the last event, so they get a moment to arrive."""
        if before is None:
            return None
        deadline_s = time.perf_counter() + _COUNTERS_LAG_S
        while True:
            after = read_metrics(self._server.endpoint)
            found: dict[str, Any] = {name: delta(before, after, metric) for name, metric in _COUNTERS.items()}
            arrived = found["requests"] in (None, asked) and found["generation_tokens"] in (None, made)
            if arrived or time.perf_counter() > deadline_s:
                positions = deltas_by_label(before, after, _PER_POSITION, "position") if after else {}
                found["per_pos"] = [positions[name] for name in sorted(positions, key=int)]
                return found
            time.sleep(_LOOK_EVERY_S)

    def _next_salt(self) -> str:
        self._salts += 1
        return f"{self._salt}-{self._salts}"


def _stream_record(answer: Answer) -> Record:
    usage = answer.usage
    return {
        "sent_s": answer.sent_at_s or 0.0,
        "first_byte_s": round(answer.first_byte_s or 0.0, 6),
        "ttft_s": round(answer.ttft_s if answer.ttft_s is not None else answer.token_events[0][0], 6),
        "events": [[round(time_s, 6), count] for time_s, count in answer.token_events],
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "finish_reason": answer.finish_reason,
    }


def _measured_gap_error(streams: int, period_s: float, events: int) -> float:
    from shardwright.probes.self_check import client_gap_error

    return client_gap_error(streams, period_s, events)
