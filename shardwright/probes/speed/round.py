"""The arithmetic of one stored round: what its event times say, and whether they may be believed.

Everything here is computed from the record alone, so that a report can be made again from what is on file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from shardwright.probes.metrics import acceptance_length
from shardwright.probes.stream_client import bunched_share

TrialClass = Literal[
    "OK", "CONTAMINATED", "STEPS_DISAGREE", "SHORT", "NO_OVERLAP", "CACHE_HIT", "TOO_FAST", "CLIENT_LIMITED", "ERROR"
]
STEPS_TOLERANCE = 0.02
"""How far two counts of the same steps may be apart."""
BUNCHED_LIMIT = 0.05
"""Above this share of bunched gaps a gap says nothing about the server."""
BUNCHED_USELESS = 0.25
"""Above this share the window is cut by chance, so rates and steps say nothing either."""
CLIENT_LIMIT = 0.05
"""Above this median error of a gap, as a share of the period, the client is what is measured."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class TrialOutcome:
    """The class of a trial and the ground for it."""

    outcome: TrialClass
    detail: str


@dataclass(frozen=True)
class Measured:
    """What one decode round says. Times are milliseconds, rates are tokens in a second."""

    window_s: float
    tok_s: float
    """All streams together, while all of them are active."""
    step_ms: float
    ttft_ms: tuple[float, ...]
    first_byte_ms: tuple[float, ...]
    itl_ms: tuple[float, ...]
    """Gaps between events that bring tokens, within the window."""
    token_ms: float
    """Mean time of one token of one stream."""
    bunched: float
    speculative: bool
    accept_len: float | None
    accept_rates: tuple[float, ...]
    drafts: int


def judge_trial(record: Record) -> TrialOutcome:
    """Judge one stored trial again."""
    if record.get("class") == "ERROR":
        return TrialOutcome("ERROR", str(record.get("detail", "")))
    if record["test"] == "self-check":
        error = record["gap_error"]
        if error > CLIENT_LIMIT:
            return TrialOutcome("CLIENT_LIMITED", f"this client is off by {100 * error:.0f} % of a gap at this load")
        return TrialOutcome("OK", f"gaps are right to {100 * error:.1f} %")
    foreign = _contaminated(record)
    if foreign:
        return TrialOutcome("CONTAMINATED", foreign)
    return _judge_prefill(record) if record["test"] == "prefill" else _judge_decode(record)


def window_of(streams: Sequence[Record]) -> tuple[float, float]:
    """From the moment the last stream has its first token to the end of the first that ends, on one clock, seconds."""
    starts = [stream["sent_s"] + stream["events"][0][0] for stream in streams]
    ends = [stream["sent_s"] + stream["events"][-1][0] for stream in streams]
    return max(starts), min(ends)


def measure(record: Record) -> Measured:
    """The numbers of a decode round whose class is OK."""
    streams = record["streams"]
    begin, end = window_of(streams)
    inside = [_inside(stream, begin, end) for stream in streams]
    tokens = sum(count for events in inside for _, count in events[1:])
    speculative = is_speculative(record)
    spans = [events[-1][0] - events[0][0] for events in inside if len(events) > 1]
    steps = sum(len(events) - 1 for events in inside) if speculative else tokens
    gaps = [b[0] - a[0] for events in inside for a, b in pairwise(events)]
    counters = record.get("metrics") or {}
    drafts = int(counters.get("drafts") or 0)
    return Measured(
        window_s=end - begin,
        tok_s=tokens / (end - begin),
        step_ms=1000 * sum(spans) / max(steps, 1),
        ttft_ms=tuple(1000 * stream["ttft_s"] for stream in streams),
        first_byte_ms=tuple(1000 * stream["first_byte_s"] for stream in streams),
        itl_ms=tuple(1000 * gap for gap in gaps),
        token_ms=1000 * sum(spans) / max(tokens, 1),
        bunched=fmean(bunched_share([time for time, _ in events]) for events in inside),
        speculative=speculative,
        accept_len=acceptance_length(counters.get("accepted"), drafts),
        accept_rates=tuple(accepted / drafts for accepted in counters["per_pos"]) if drafts else (),
        drafts=drafts,
    )


def is_speculative(record: Record) -> bool:
    """Whether a step may bring several tokens. Without counters, events of several tokens are taken for it."""
    counters = record.get("metrics")
    if counters is not None:
        return counters.get("drafts") is not None
    return any(count > 1 for stream in record["streams"] for _, count in _counted(stream))


def median_step_ms(streams: Sequence[Record]) -> float:
    """Mean gap between events over all streams, milliseconds: what a warm-up is watched by."""
    gaps = [b[0] - a[0] for stream in streams for a, b in pairwise(stream["events"])]
    return 1000 * fmean(gaps) if gaps else 0.0


def settled(medians: Sequence[float], share: float) -> bool:
    """Whether the last two are within this share of each other."""
    if len(medians) < 2:
        return False
    a, b = medians[-2:]
    return abs(a - b) <= share * max(a, b)


def prefill_tok_s(record: Record) -> float:
    """Prompt tokens in a second, the time of a short prompt taken off."""
    return float(record["prompt_tokens"] / (record["ttft_s"] - record["short_ttft_s"]))


def _counted(stream: Record) -> list[tuple[float, float]]:
    """Events with their tokens; where the server gives no ids, its own count spread evenly."""
    events = stream["events"]
    if any(count for _, count in events) or not events:
        return [(time, count) for time, count in events]
    each = (stream["completion_tokens"] or len(events)) / len(events)
    return [(time, each) for time, _ in events]


def _inside(stream: Record, begin: float, end: float) -> list[tuple[float, float]]:
    """The events of one stream within the window, on one clock."""
    slack = 1e-9
    events = [(stream["sent_s"] + time, count) for time, count in _counted(stream)]
    return [(time, count) for time, count in events if begin - slack <= time <= end + slack]


def _contaminated(record: Record) -> str:
    """How the server's counters differ from what we asked for, or an empty string."""
    counters = record.get("metrics")
    if counters is None:
        return ""
    streams = record.get("streams") or []
    asked, made = record["asked"], record["made"]
    if counters["requests"] is not None and counters["requests"] != asked:
        return f"the server finished {counters['requests']:g} requests, {asked} of them ours"
    if counters["generation_tokens"] is not None and counters["generation_tokens"] != made:
        return f"the server made {counters['generation_tokens']:g} tokens, {made} of them ours"
    return "an answer has no usage" if any(s["completion_tokens"] is None for s in streams) else ""


def _judge_decode(record: Record) -> TrialOutcome:
    streams, wanted = record["streams"], record["max_tokens"]
    short = [s["completion_tokens"] for s in streams if s["completion_tokens"] != wanted]
    if short:
        return TrialOutcome("SHORT", f"an answer has {short[0]} tokens, not {wanted}: the server ends it by itself")
    begin, end = window_of(streams)
    if end <= begin or any(len(_inside(stream, begin, end)) < 2 for stream in streams):
        return TrialOutcome("NO_OVERLAP", "the streams were never all active at a time, or everything came at once")
    counters = record.get("metrics") or {}
    drafts = counters.get("drafts")
    if drafts:
        steps = sum(len(stream["events"]) - 1 for stream in streams)
        if abs(steps - drafts) > max(STEPS_TOLERANCE * drafts, len(streams)):
            return TrialOutcome("STEPS_DISAGREE", f"{steps} steps by events, {drafts:g} by the server's counter")
    return TrialOutcome("OK", "")


def _judge_prefill(record: Record) -> TrialOutcome:
    hits = (record.get("metrics") or {}).get("hits")
    if hits:
        return TrialOutcome("CACHE_HIT", f"{hits:g} tokens of a cold prompt came from the prefix cache")
    if record["ttft_s"] <= record["short_ttft_s"]:
        return TrialOutcome("TOO_FAST", "the prompt took no longer than a short one")
    return TrialOutcome("OK", "")
