"""Counters and gauges of a server, from /metrics, before and after what a probe asks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.wire import Endpoint, get

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PREEMPTIONS = "vllm:num_preemptions_total"
_START_TIME = "process_start_time_seconds"

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)(?: -?[0-9]+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_IDLE_WAIT_S = 2.0
_LOOK_EVERY_S = 0.05

Labels = Mapping[str, str]


class CounterResetError(DeployError):
    """A counter went back: the server was started anew in between, so what was measured across it means nothing."""

    def __init__(self, name: str, before: float, after: float) -> None:
        super().__init__(
            f"{name} went back from {before:g} to {after:g}",
            why="the server was started anew while the probe ran",
            fix="find out why it died (deploy doctor), then run the probe again",
            code=ExitCode.HARNESS,
        )


@dataclass(frozen=True)
class Metrics:
    """One reading: for each name the samples with their labels."""

    samples: Mapping[str, tuple[tuple[Labels, float], ...]]

    def value(self, name: str) -> float | None:
        """The sum over all label sets (several engines have one each); None where the server has no such metric."""
        found = self.samples.get(name)
        return None if found is None else sum(value for _, value in found)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums by the value of one label, such as `position`; samples without it are left out."""
        sums: dict[str, float] = {}
        for labels, value in self.samples.get(name, ()):
            if label in labels:
                sums[labels[label]] = sums.get(labels[label], 0.0) + value
        return sums


def parse_metrics(text: str) -> Metrics:
    """Read the Prometheus text format; lines that are none are passed over."""
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for line in text.split("\n"):
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        samples.setdefault(name, []).append((dict(_LABEL.findall(labels or "")), value))
    return Metrics({name: tuple(found) for name, found in samples.items()})


def read_metrics(endpoint: Endpoint) -> Metrics | None:
    """The server's metrics now; None where it has none. Raises TransportError where it cannot be reached."""
    reply = get(endpoint, "/metrics")
    return parse_metrics(reply.body.decode("utf-8", "replace")) if reply.status == 200 else None


def delta(before: Metrics | None, after: Metrics | None, name: str) -> float | None:
    """How far a counter went; None where it is not to be had. A counter that first shows in `after` began at 0.

    Raises CounterResetError where it went back, or where the process was started anew in between.
    """
    if before is None or after is None:
        return None
    end = after.value(name)
    begin = before.value(name)
    if end is None and begin is None:
        return None
    began, began_again = before.value(_START_TIME), after.value(_START_TIME)
    if (end or 0.0) < (begin or 0.0) or (began is not None and began_again is not None and began != began_again):
        raise CounterResetError(name, begin or 0.0, end or 0.0)
    return (end or 0.0) - (begin or 0.0)


def deltas_by_label(before: Metrics, after: Metrics, name: str, label: str) -> dict[str, float]:
    """As `delta`, for each value of one label. Raises CounterResetError."""
    begin, end = before.by_label(name, label), after.by_label(name, label)
    for key, value in begin.items():
        if end.get(key, 0.0) < value:
            raise CounterResetError(f"{name}{{{label}={key}}}", value, end.get(key, 0.0))
    return {key: value - begin.get(key, 0.0) for key, value in end.items()}


def acceptance_length(accepted: float | None, drafts: float | None) -> float | None:
    """Tokens per step: that of the step itself, and the drafted ones that were accepted. None without drafts."""
    return None if not drafts or accepted is None else 1 + accepted / drafts


def busy_requests(metrics: Metrics | None) -> float | None:
    """Requests that run or wait now; None where the server does not say."""
    if metrics is None or metrics.value(RUNNING) is None:
        return None
    return (metrics.value(RUNNING) or 0.0) + (metrics.value(WAITING) or 0.0)


def wait_idle(endpoint: Endpoint, wait_s: float) -> float | None:
    """Wait until nothing runs; returns what still runs or waits at the end, None where the server does not say."""
    deadline_s = time.perf_counter() + wait_s
    while True:
        busy = busy_requests(read_metrics(endpoint))
        if not busy or time.perf_counter() >= deadline_s:
            return busy
        time.sleep(_LOOK_EVERY_S)


def require_idle(endpoint: Endpoint, wait_s: float = _IDLE_WAIT_S) -> bool:
    """Refuse a server that works for others. True where it was seen idle, False where it does not say.

    Requests that were just given up need a moment to end, so it waits that long. Raises DeployError (exit 4).
    """
    busy = wait_idle(endpoint, wait_s)
    if busy:
        raise DeployError(
            f"{endpoint.base_url} is busy with {busy:g} requests of others",
            why="what is measured beside other traffic is not what this deployment does",
            fix="wait until it is idle, or ask a server of your own",
            code=ExitCode.HARNESS,
        )
    return busy is not None
