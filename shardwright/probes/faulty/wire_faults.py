"""Faults between the engine and the client, and of what the server says about itself."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.probes.faulty import misbehave as m
from shardwright.probes.faulty.behaviour import Behaviour, Situation
from shardwright.probes.faulty.fault import Fault


def _every(count: int, first: int = 0) -> Callable[[Situation], bool]:
    return lambda s: s.number % 10 in range(first, first + count)


WIRE_FAULTS = (
    Fault("stall", "no byte comes any more", "", Behaviour(wire="stall")),
    Fault(
        "deep-stall",
        "prompts past some depth are taken and never answered",
        "",
        Behaviour(wire="stall", wire_at=m.past_deep),
    ),
    Fault("dropped", "the connection is lost in the middle of an answer", "", Behaviour(wire="drop")),
    Fault("half-closed", "the stream is closed without its end", "", Behaviour(wire="half-close")),
    Fault("no-done", "`[DONE]` never comes", "", Behaviour(wire="no-done")),
    Fault("error-in-stream", "an error inside a stream that began well", "", Behaviour(wire="error-event")),
    Fault("role-only", "the stream ends after its role chunk", "", Behaviour(wire="role-only")),
    Fault("not-json", "a gateway answers with a page of its own", "", Behaviour(wire="not-json")),
    Fault("bunched", "a proxy holds events and sends eight at a time", "", Behaviour(wire="bunched")),
    Fault(
        "burst-429",
        "two of ten requests are refused as too many",
        "",
        Behaviour(refuses=m.refuse(429, "Too many requests", _every(2, 4))),
    ),
    Fault(
        "burst-503",
        "two of ten requests meet a gateway without a server",
        "",
        Behaviour(refuses=m.refuse(503, "Service Unavailable", _every(2, 4))),
    ),
    Fault(
        "dead-engine",
        "every generation fails",
        "",
        Behaviour(refuses=m.refuse(500, "EngineCore encountered an issue", lambda _: True)),
    ),
    Fault("counters-reset", "the counters start again while a probe runs", "", Behaviour(resets_counters_at=7)),
    Fault(
        "clock-skew",
        "the server's clock is a day off, which must not matter",
        "",
        Behaviour(clock_skew_s=-86_400),
    ),
    Fault(
        "wrong-usage",
        "usage counts a token more than came",
        "",
        Behaviour(
            payload=lambda body, _: m.wrong_usage(body), events=lambda events, _: [m.wrong_usage(e) for e in events]
        ),
    ),
    Fault(
        "abort-leak",
        "a request whose client left goes on running",
        "vllm-project/vllm#54947",
        Behaviour(keeps_aborted=True),
    ),
    Fault("salt-ignored", "cache_salt has no effect: a cold prompt is warm", "", Behaviour(ignores_salt=True)),
    Fault("busy", "another client's requests run", "", Behaviour(always_running=3)),
)
"""In no order; `faults.FAULTS` gives them their expected outcomes."""
