"""Where a fault can take hold of the faulty server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from shardwright.probes.faulty.asked import Asked, RefusedError
from shardwright.probes.faulty.generated import Generated, Scores
from shardwright.probes.faulty.script import Script

Wire = Literal["stall", "drop", "half-close", "no-done", "error-event", "role-only", "bunched", "not-json"]
Event = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Token counts at which faults begin; small ones make a self-test quick."""

    index_topk: int = 2048
    deep: int = 4096
    """Stands for the 128k at which an indexer or a pipeline goes blind."""
    max_model_len: int = 32_768


@dataclass(frozen=True)
class Situation:
    """A request among the others. `running` counts it too; `chance` is its own, fixed by the server's seed."""

    asked: Asked
    prompt_tokens: int
    cached_tokens: int
    running: int
    number: int
    chance: Random
    sizes: Sizes


@dataclass(frozen=True)
class Behaviour:
    """The healthy server has none of these. Each is one place where an answer can go wrong."""

    script: Callable[[Script, Situation], Script] | None = None
    generated: Callable[[Generated, Situation], Generated] | None = None
    refuses: Callable[[Situation], RefusedError | None] | None = None
    events: Callable[[list[Event], Situation], list[Event]] | None = None
    """Takes the events of a streamed answer, the usage event included."""
    payload: Callable[[Event, Situation], Event] | None = None
    """Takes the body of an answer in one piece."""
    scores: Callable[[Situation, int], Scores] | None = None
    wire: Wire | None = None
    wire_at: Callable[[Situation], bool] = lambda _: True
    """Which requests the wire fault meets."""
    acceptance: tuple[float, float, float] | None = None
    least_s: float = 0.0
    """The least time of an answer, so that requests meet."""
    keeps_aborted: bool = False
    ignores_salt: bool = False
    resets_counters_at: int = 0
    """Counters start again at each so many requests; 0 is never."""
    always_running: int = 0
    clock_skew_s: int = 0


HEALTHY = Behaviour()
