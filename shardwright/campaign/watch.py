"""What runs, at a glance: state, phase of a start, the server's own numbers, and whether it is what was asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.campaign.drift import find_drift
from shardwright.campaign.engine_steps import api_key
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.records import StartRecord, list_records
from shardwright.campaign.request import prepare
from shardwright.connect.project import Project
from shardwright.errors import DeployError
from shardwright.facts.nvml import read_cards
from shardwright.probes.metrics import RUNNING, WAITING, Metrics, read_metrics
from shardwright.probes.wire import Endpoint, TransportError
from shardwright.runtime.base import EngineState, Runtime
from shardwright.runtime.phases import Phase, advance, see_phase

_ANSWER_TIMEOUT_S = 2.0
_LOG_LINES = 2000
_KV_USAGE = "vllm:kv_cache_usage_perc"
_PREEMPTIONS = "vllm:num_preemptions_total"
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True)
class EngineStatus:
    """One instance. What the server does not say, or what is not looked at for a stopped one, is None.

    `answers`: "yes", "no" (nobody answers within two seconds), or "no metrics". `kv_usage` is a share from 0 to 1,
    `acceptance_length` the tokens per step since the engine began. `drift` is "none", "drift", or why it is not known;
    `drifted` names what differs, an edited or lost overlay among it.
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
    gpu_memory_gib: tuple[tuple[float, float], ...] = ()
    """Used and total memory of every card of this host, whoever uses it."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def look(project: Project, layout: str | None, environ: Mapping[str, str]) -> list[EngineStatus]:
    """Every instance that was started from this project, of one layout or of all, newest first within a layout."""
    found = []
    for record in list_records(project.state_dir()):
        if layout in (None, record.layout):
            runtime = runtime_of(record.runtime, project.root)
            found += [_status(project, runtime, state, record, environ) for state in runtime.instances(record.layout)]
    return found


def _status(
    project: Project, runtime: Runtime, state: EngineState, record: StartRecord, environ: Mapping[str, str]
) -> EngineStatus:
    current = state.name == record.instance
    alive = state.status == "running" and state.started_at is not None
    seen: dict[str, Any] = {}
    if alive and current:
        seen = _served(record, environ)
        seen["phase"] = str(Phase.READY if seen["answers"] != "no" else _phase(runtime, state.name))
        seen["drift"], seen["drifted"] = _drift(project, record, environ)
        seen["gpu_memory_gib"] = _gpu_memory()
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
        metrics = read_metrics(endpoint)
    except TransportError:
        return {"answers": "no"}
    if metrics is None:
        return {"answers": "no metrics"}
    return {
        "answers": "yes",
        "running": _whole(metrics, RUNNING),
        "waiting": _whole(metrics, WAITING),
        "kv_usage": metrics.value(_KV_USAGE),
        "acceptance_length": _acceptance(metrics),
        "preemptions": _whole(metrics, _PREEMPTIONS),
    }


def _whole(metrics: Metrics, name: str) -> int | None:
    value = metrics.value(name)
    return None if value is None else round(value)


def _acceptance(metrics: Metrics) -> float | None:
    """One token of the step itself, and the drafted ones that were accepted, per step."""
    drafts, accepted = metrics.value(_DRAFTS), metrics.value(_ACCEPTED)
    return None if not drafts or accepted is None else 1 + accepted / drafts


def _phase(runtime: Runtime, name: str) -> Phase:
    phase = Phase.STARTING
    for line in runtime.logs(name, tail=_LOG_LINES):
        sighting = see_phase(line)
        if sighting is not None:
            phase = advance(phase, sighting.phase)
    return phase


def _gpu_memory() -> tuple[tuple[float, float], ...]:
    cards = read_cards().gpus or ()
    return tuple((gpu.memory_gib - gpu.free_gib, gpu.memory_gib) for gpu in cards if gpu.free_gib is not None)


def _drift(project: Project, record: StartRecord, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    try:
        found = find_drift(prepare(record.layout, environ, project=project))
    except DeployError as error:
        return f"not known: {error.what}", ()
    return ("drift" if found.differences else "none"), tuple(one.path for one in found.differences)
