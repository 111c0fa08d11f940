"""What runs, at a glance: state, phase of a start, the server's own numbers, and whether it is what was asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.campaign.card_memory import CardMemory, card_memory
from shardwright.campaign.drift import find_drift
from shardwright.campaign.engine_steps import api_key
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.records import StartRecord, list_records
from shardwright.campaign.request import Request, prepare
from shardwright.connect.project import Project
from shardwright.errors import DeployError
from shardwright.facts.nvml import read_cards
from shardwright.gates.devices import chosen_cards
from shardwright.probes.metrics import (
    ACCEPTED,
    DRAFTS,
    PREEMPTIONS,
    RUNNING,
    WAITING,
    Metrics,
    acceptance_length,
    read_metrics,
)
from shardwright.probes.wire import Endpoint, TransportError, get
from shardwright.runtime.base import EngineState, Runtime
from shardwright.runtime.phases import Phase, phase_of

_ANSWER_TIMEOUT_S = 2.0
_LOG_LINES = 2000
_KV_USAGE = "vllm:kv_cache_usage_perc"


@dataclass(frozen=True)
class EngineStatus:
    """One instance. What the server does not say, or what is not looked at for a stopped one, is None.

    `answers`: "yes", "no" (nobody answers within two seconds), "unhealthy", or "no metrics". `kv_usage` is a share from
    0 to 1, that of the fullest engine where there are several; `acceptance_length` the tokens per step since the engine
    began. `drift` is "none", "drift", or why it is not known, `drifted` what differs. `overlay` is "as locked" or
    "changed", None without patches or where nobody looked.
    """

    instance: str
    layout: str
    runtime: str
    status: str
    exit_code: int | None
    restart_count: int
    uptime_s: int | None
    base_url: str | None
    model: str | None
    phase: str | None = None
    answers: str | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    acceptance_length: float | None = None
    preemptions: int | None = None
    drift: str | None = None
    drifted: tuple[str, ...] = ()
    overlay: str | None = None
    cards: tuple[CardMemory, ...] = ()
    cards_named: bool = False
    """Whether `cards` are those that the layout names; else they are all of this host."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def look(project: Project, layout: str | None, environ: Mapping[str, str]) -> list[EngineStatus]:
    """Every instance that was started from this project, of one layout or of all, newest first within a layout."""
    records = [record for record in list_records(project.state_dir()) if layout in (None, record.layout)]
    cards = card_memory(read_cards().gpus or ()) if records else ()
    found = []
    for record in records:
        runtime = runtime_of(record.runtime, project.root)
        states = runtime.instances(record.layout)
        found += [_status(project, runtime, state, record, environ, cards) for state in states]
    return found


def _status(
    project: Project,
    runtime: Runtime,
    state: EngineState,
    record: StartRecord,
    environ: Mapping[str, str],
    cards: tuple[CardMemory, ...],
) -> EngineStatus:
    current = state.name == record.instance
    alive = state.status == "running" and state.started_at is not None
    seen: dict[str, Any] = {}
    if alive and current:
        seen = _served(record, environ)
        answers = seen["answers"]
        phase = Phase.READY if answers in ("yes", "no metrics") else _phase(runtime, state.name)
        seen["phase"] = str(phase) if phase else None
        seen |= _as_asked(project, record, environ, cards)
    elif alive:
        seen = {"drift": "not checked: another instance is on record"}
    return EngineStatus(
        instance=state.name,
        layout=state.layout,
        runtime=record.runtime,
        status=state.status,
        exit_code=state.exit_code,
        restart_count=state.restart_count,
        uptime_s=round(time.time() - (state.started_at or 0)) if alive else None,
        base_url=record.base_url if current else None,
        model=record.model if current else None,
        **seen,
    )


def _served(record: StartRecord, environ: Mapping[str, str]) -> dict[str, Any]:
    endpoint = Endpoint(
        record.base_url,
        api_key(record, environ),
        connect_timeout_s=_ANSWER_TIMEOUT_S,
        idle_timeout_s=_ANSWER_TIMEOUT_S,
        total_timeout_s=_ANSWER_TIMEOUT_S,
    )
    try:
        if get(endpoint, "/health").status != 200:
            return {"answers": "unhealthy"}
        metrics = read_metrics(endpoint)
    except TransportError:
        return {"answers": "no"}
    if metrics is None:
        return {"answers": "no metrics"}
    return {
        "answers": "yes",
        "running": _whole(metrics, RUNNING),
        "waiting": _whole(metrics, WAITING),
        "kv_usage": max((value for _, value in metrics.samples.get(_KV_USAGE, ())), default=None),
        "acceptance_length": acceptance_length(metrics.value(ACCEPTED), metrics.value(DRAFTS)),
        "preemptions": _whole(metrics, PREEMPTIONS),
    }


def _whole(metrics: Metrics, name: str) -> int | None:
    value = metrics.value(name)
    return None if value is None else round(value)


def _phase(runtime: Runtime, name: str) -> Phase | None:
    """From the end of the log; None where it cannot be read."""
    try:
        return phase_of(runtime.logs(name, tail=_LOG_LINES))
    except DeployError:
        return None


def _as_asked(
    project: Project, record: StartRecord, environ: Mapping[str, str], cards: tuple[CardMemory, ...]
) -> dict[str, Any]:
    """What needs the layout: drift, the overlay, and which of the host's cards are this engine's."""
    try:
        request = prepare(record.layout, environ, project=project)
    except DeployError as error:
        return {"drift": f"not known: {error.what}", "cards": cards}
    return _drift(request, record) | _cards(request, record, cards)


def _drift(request: Request, record: StartRecord) -> dict[str, Any]:
    try:
        found = find_drift(request)
    except DeployError as error:
        return {"drift": f"not known: {error.what}"}
    if found.instance != record.instance:
        return {"drift": f"not checked: {found.instance} is newer"}
    paths = tuple(one.path for one in found.differences)
    overlay = None if request.deployment.overlay is None else "changed" if "overlay" in paths else "as locked"
    return {"drift": "drift" if paths else "none", "drifted": paths, "overlay": overlay}


def _cards(request: Request, record: StartRecord, cards: tuple[CardMemory, ...]) -> dict[str, Any]:
    """The cards of the engine, where the layout still is what was started; else all of the host."""
    started = request.deployment.instance_name == record.instance
    numbers = chosen_cards(request.deployment) if started else None
    own = tuple(card for card in cards if numbers is not None and card.number in numbers)
    return {"cards": own or cards, "cards_named": bool(own)}
