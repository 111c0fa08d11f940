"""Wait until an engine really answers, name the phase it is in, and end at once when it cannot become ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shardwright.connect.http import JsonClient
from shardwright.errors import DeployError, ExitCode
from shardwright.runtime import failure
from shardwright.runtime.base import EngineState, Runtime
from shardwright.runtime.follow import LogFollower, LogSource
from shardwright.runtime.phases import Phase, advance, is_fatal, see_phase
from shardwright.runtime.readiness import TOKEN_TIMEOUT_S, Http, Look, Verdict, look

POLL_S = 0.5
HEARTBEAT_S = 15.0
GRACE_S = 3.0
"""How long a dying engine gets to finish its traceback before it is reported."""


class Clock(Protocol):
    """Time as the wait loop sees it, in seconds."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class PhaseEvent:
    """A new phase (`is_new`), or a sign of life every 15 s in an old one.

    `elapsed_s` counts from the beginning of the wait, `phase_s` from that of the phase. `message` is the log line that
    showed the phase, `worker` the tag of who said it.
    """

    phase: Phase
    elapsed_s: float
    phase_s: float
    is_new: bool
    worker: str = ""
    message: str = ""


@dataclass(frozen=True)
class Ready:
    """An engine that answered. `phases` holds each phase seen with the seconds after which it began."""

    name: str
    base_url: str
    model: str
    elapsed_s: float
    phases: tuple[tuple[Phase, float], ...]


def ignore_event(event: PhaseEvent) -> None:
    """For callers that want no progress."""


def wait_ready(
    runtime: Runtime,
    name: str,
    *,
    base_url: str,
    model: str,
    timeout_s: float,
    on_event: Callable[[PhaseEvent], None] = ignore_event,
    api_key: str | None = None,
    clock: Clock | None = None,
    http: Http | None = None,
    log: LogSource | None = None,
) -> Ready:
    """Wait for health, the model's name and one generated token of the engine `name` at `base_url`.

    Raises EngineFailedError (exit 1) as soon as the engine is dead, restarts in a loop or fails its first request,
    DeployError when another server answers, and DeployError with code TIMEOUT after `timeout_s` seconds. The engine is
    left alone in every case, also on Ctrl-C.
    """
    client = http or JsonClient(api_key)
    source = log or LogFollower(runtime, name)
    try:
        wait = _Wait(runtime, name, base_url, model, timeout_s, on_event, clock or SystemClock())
        return wait.run(client, source)
    finally:
        source.close()


@dataclass(frozen=True)
class _Doom:
    """Why an engine that still runs cannot become ready, and since when that is known.

    `by_request`: a request told it, which stays the thing to report when the engine has ended meanwhile.
    """

    what: str
    since_s: float
    by_request: bool


class _Wait:
    def __init__(
        self,
        runtime: Runtime,
        name: str,
        base_url: str,
        model: str,
        timeout_s: float,
        on_event: Callable[[PhaseEvent], None],
        clock: Clock,
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._base_url = base_url
        self._model = model
        self._layout = ""
        self._timeout_s = timeout_s
        self._on_event = on_event
        self._clock = clock
        self._began = clock.monotonic()
        self._phases: list[tuple[Phase, float]] = []
        self._last_line = ""
        self._last_event_s = 0.0
        self._restarts_before: int | None = None
        self._restarting_polls = 0
        self._doom: _Doom | None = None

    def run(self, http: Http, source: LogSource) -> Ready:
        self._enter(Phase.STARTING)
        while True:
            for line in source.new_lines():
                self._read(line)
            self._check_state(self._runtime.state(self._name))
            self._check_doom()
            if self._doom is None and self._look(http):
                return self._ready()
            if self._elapsed() >= self._timeout_s:
                raise self._timed_out()
            self._heartbeat()
            self._clock.sleep(POLL_S)

    @property
    def _phase(self) -> Phase:
        return self._phases[-1][0]

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._began

    def _read(self, line: str) -> None:
        if line.strip():
            self._last_line = line.strip()
        if is_fatal(line):
            self._note_doom(f"the engine core of {self._name} is dead, though a process of it still runs")
        sighting = see_phase(line)
        if sighting is not None:
            self._enter(advance(self._phase, sighting.phase), sighting.worker, sighting.message)

    def _enter(self, phase: Phase, worker: str = "", message: str = "") -> None:
        if self._phases and phase == self._phase:
            return
        elapsed = self._elapsed()
        self._phases.append((phase, elapsed))
        self._last_event_s = elapsed
        self._on_event(PhaseEvent(phase, elapsed, 0.0, True, worker, message))

    def _heartbeat(self) -> None:
        elapsed = self._elapsed()
        if elapsed - self._last_event_s >= HEARTBEAT_S:
            self._last_event_s = elapsed
            self._on_event(PhaseEvent(self._phase, elapsed, elapsed - self._phases[-1][1], False))

    def _check_state(self, state: EngineState) -> None:
        if state.status == "absent":
            raise DeployError(f"there is no engine {self._name}", fix="deploy status shows what runs here")
        self._layout = state.layout
        if state.status in ("exited", "dead"):
            what = self._doom.what if self._doom is not None and self._doom.by_request else self._death(state)
            raise self._failure(what, state)
        if self._restarts_before is None:
            self._restarts_before = state.restart_count
        self._restarting_polls = self._restarting_polls + 1 if state.status == "restarting" else 0
        if state.restart_count > self._restarts_before or self._restarting_polls >= 2:
            what = f"{self._name} restarts in a loop ({state.restart_count} restarts, last {_code(state)})"
            raise self._failure(what, state)

    def _death(self, state: EngineState) -> str:
        after = f"in phase {self._phase}, {self._elapsed():.0f} s into the wait"
        if state.exit_code == 0:
            return f"{self._name} ended {after} with exit code 0; nobody stopped it, so it crashed all the same"
        return f"{self._name} died {after} ({_code(state)})"

    def _note_doom(self, what: str, *, by_request: bool = False) -> None:
        if self._doom is None:
            self._doom = _Doom(what, self._elapsed(), by_request)

    def _check_doom(self) -> None:
        if self._doom is not None and self._elapsed() - self._doom.since_s >= GRACE_S:
            raise self._failure(self._doom.what, self._runtime.state(self._name))

    def _look(self, http: Http) -> bool:
        remaining_s = max(1.0, self._timeout_s - self._elapsed())
        seen = look(http, self._base_url, self._model, min(TOKEN_TIMEOUT_S, remaining_s))
        if seen.verdict is Verdict.NO_TOKEN_YET:
            self._enter(Phase.FIRST_TOKEN, message=seen.detail)
        elif seen.verdict is Verdict.DEAD:
            self._note_doom(f"the engine core of {self._name} is dead: {seen.detail}")
        elif seen.verdict is Verdict.REQUEST_FAILED:
            what = f"{self._name} says that it is ready and fails its first request: {seen.detail}"
            self._note_doom(what, by_request=True)
        elif seen.verdict in (Verdict.WRONG_MODEL, Verdict.FOREIGN, Verdict.UNAUTHORISED):
            raise self._stranger(seen)
        return seen.verdict is Verdict.READY

    def _ready(self) -> Ready:
        self._enter(Phase.READY)
        return Ready(self._name, self._base_url, self._model, self._elapsed(), tuple(self._phases))

    def _failure(self, what: str, state: EngineState) -> failure.EngineFailedError:
        return failure.explain(what, self._runtime.logs(self._name), state, self._phase, self._layout)

    def _stranger(self, seen: Look) -> DeployError:
        if seen.verdict is Verdict.UNAUTHORISED:
            return DeployError(
                f"the server at {self._base_url} wants an API key: {seen.detail}",
                fix="export VLLM_API_KEY=... and wait again",
            )
        return DeployError(
            f"another server answers at {self._base_url}: {seen.detail}, and {self._model} was asked for",
            why="an engine that was not stopped, or another program, has this port",
            fix=f"stop it, or start on another port: PORT=... deploy start {self._layout}",
        )

    def _timed_out(self) -> DeployError:
        phase, since = self._phases[-1]
        hangs = "; /health answers 200 and no token comes" if phase is Phase.FIRST_TOKEN else ""
        return DeployError(
            f"{self._name} was not ready after {self._timeout_s:.0f} s: "
            f"in phase {phase} for {self._elapsed() - since:.0f} s{hangs}",
            why=f"its last log line: {self._last_line[:300]}" if self._last_line else "its log is empty",
            fix=f"it still runs: deploy wait {self._layout} waits on, and deploy logs {self._layout} "
            "shows what it does; wait.timeout_s in the layout gives it longer",
            code=ExitCode.TIMEOUT,
        )


def _code(state: EngineState) -> str:
    return "exit code unknown" if state.exit_code is None else f"exit code {state.exit_code}"
