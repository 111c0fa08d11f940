"""Can this machine's client keep up? Measured against a server of our own that knows when it sent each event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.client import GREEDY, Answer, Request
from shardwright.probes.stream_client import bunched_share, run_streams
from shardwright.probes.wire import Endpoint

LARGEST_ERROR = 0.05
"""A median gap error above this share of the period makes a measured gap a statement about the client."""
_EVENTS = 50
_START_TIMEOUT_S = 30.0
_NS = 1e9


@dataclass(frozen=True)
class ClientCheck:
    """What the client's clock is worth at one load. Errors are shares of the period, `ttft_s` is seconds."""

    concurrency: int
    period_s: float
    events: int
    median_gap_error: float
    p95_gap_error: float
    worst_mean_error: float
    """Of the mean gap of one stream, the worst stream."""
    bunched: float
    median_ttft_s: float

    @property
    def limited(self) -> bool:
        return self.median_gap_error > LARGEST_ERROR


def client_gap_error(concurrency: int, period_s: float, events: int = _EVENTS) -> float:
    """Median of |gap as received - gap as sent| over all streams, as a share of the period.

    Above `LARGEST_ERROR` the client is the limit. Raises DeployError (exit 4) where the check itself fails.
    """
    return check_client(concurrency, period_s, events).median_gap_error


def check_client(concurrency: int, period_s: float, events: int = _EVENTS) -> ClientCheck:
    """Stream `events` events to each of `concurrency` streams, one in each period, from a process of its own."""
    with paced_server(period_s, events) as base_url:
        requests = [Request("pacer", "go", "chat", events, GREEDY) for _ in range(concurrency)]
        answers = run_streams(Endpoint(base_url, idle_timeout_s=30.0), requests, concurrency)
    whole = [answer for answer in answers if isinstance(answer, Answer)]
    if len(whole) < concurrency:
        raise DeployError(
            "the client's self-check lost streams",
            why=f"{len(whole)} of {concurrency} came whole",
            code=ExitCode.HARNESS,
        )
    times = [(sent_times_s(answer.text), answer.text_times_s) for answer in whole]
    errors = sorted(error for sent, arrived in times for error in gap_errors(sent, arrived, period_s))
    return ClientCheck(
        concurrency=concurrency,
        period_s=period_s,
        events=events,
        median_gap_error=median(errors),
        p95_gap_error=errors[int(0.95 * (len(errors) - 1))],
        worst_mean_error=max(mean_error(sent, arrived) for sent, arrived in times),
        bunched=max(bunched_share(arrived) for _, arrived in times),
        median_ttft_s=median(answer.ttft_s or 0.0 for answer in whole),
    )


def sent_times_s(text: str) -> list[float]:
    """The times of sending that the paced server wrote into an answer, seconds."""
    return [int(stamp) / _NS for stamp in text.split()]


def gap_errors(sent_s: Sequence[float], arrived_s: Sequence[float], period_s: float) -> list[float]:
    """|gap as received - gap as sent| of each two events that follow each other, as shares of the period."""
    pairs = zip(pairwise(sent_s), pairwise(arrived_s), strict=True)
    return [abs((b - a) - (d - c)) / period_s for (c, d), (a, b) in pairs]


def mean_error(sent_s: Sequence[float], arrived_s: Sequence[float]) -> float:
    """Error of a stream's mean gap, as a share of the true one."""
    true = sent_s[-1] - sent_s[0]
    return abs((arrived_s[-1] - arrived_s[0]) - true) / true


@contextmanager
def paced_server(period_s: float, events: int) -> Iterator[str]:
    """The base URL of a paced server that ends with the block. Raises DeployError (exit 4) where it does not start."""
    import select
    import subprocess
    import sys

    command = [sys.executable, "-m", "shardwright.probes.faulty.pacer", str(period_s), str(events)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
            port = process.stdout.readline().strip() if ready else b""
            if not port.isdigit():
                raise DeployError("the client's self-check has no server", code=ExitCode.HARNESS)
            yield f"http://127.0.0.1:{port.decode()}"
        finally:
            process.kill()
