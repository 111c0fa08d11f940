"""Is a patch load-bearing: the same probes with it and without it, on the same engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardwright.campaign.acceptance import accept_running
from shardwright.campaign.engine_steps import OnPhase, Say, bring_back, record_of_running, wait_for
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.launch import start_locked, stop_locked, writing
from shardwright.campaign.marks import clear_mark, read_mark, write_mark
from shardwright.campaign.overlays import build_for
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.records import StartRecord, record_of
from shardwright.campaign.request import Request, refuse_rejected
from shardwright.errors import DeployError, ExitCode, UsageError
from shardwright.runtime.base import Runtime
from shardwright.runtime.wait import ignore_event

Bearing = Literal["LOAD_BEARING", "NOT_LOAD_BEARING", "UNDECIDED"]
EXIT_CODES: Mapping[Bearing, ExitCode] = {
    "LOAD_BEARING": ExitCode.OK,
    "NOT_LOAD_BEARING": ExitCode.DRIFT,
    "UNDECIDED": ExitCode.INCONCLUSIVE,
}
_BEARINGS: Mapping[str, Bearing] = {"FAIL": "LOAD_BEARING", "PASS": "NOT_LOAD_BEARING"}


@dataclass(frozen=True)
class Ablation:
    """What came of both; `without_run` is None where the engine did not even come up without the patch."""

    bearing: Bearing
    reason: str
    with_run: Path
    without_run: Path | None


def without_patch(sets: tuple[str, ...], request: Request, patch: str) -> tuple[str, ...]:
    """The overrides of the same layout without one patch, with the waiver that lets its gate pass.

    UsageError where the layout does not name the patch.
    """
    ids = [one.id for one in request.deployment.patches]
    if patch not in ids:
        raise UsageError(
            f"{request.deployment.name} does not name the patch {patch!r}",
            fix=f"name one of {', '.join(ids)}" if ids else "deploy patch list",
        )
    left = [one for one in ids if one != patch]
    waivers = dict.fromkeys((*request.deployment.waivers, "unverified-pp"))
    return (*sets, f"patches=[{', '.join(left)}]", f"allow=[{', '.join(waivers)}]")


def ablate(
    request: Request,
    bare: Request,
    environ: Mapping[str, str],
    mode: Mode,
    *,
    message: str = "",
    say: Say = lambda _: None,
    on_phase: OnPhase = ignore_event,
) -> Ablation:
    """Ask with the patch, start without it and ask the same, start with it again. `bare` is the request without.

    The engine with the patch runs again at the end, whatever the other one did. Where that was cut off, the next call
    begins with it.
    """
    name, state_dir = request.deployment.name, request.project.state_dir()
    refuse_rejected(bare, "not started without the patch")
    with writing(state_dir, name, f"deploy verify --ablate {name}", message):
        runtime = runtime_of(request.deployment.runtime, request.project.root)
        if read_mark(state_dir, "ablate", name).get("digest") == request.deployment.digest:
            _bring_back(request, runtime, record_of(request.deployment, time.time()), environ, say, on_phase)
        record = record_of_running(request, runtime)
        sound, with_run = accept_running(request, record, environ, mode, arm="with", say=say)
        if sound.verdict != "PASS":
            return Ablation("UNDECIDED", f"with the patch the verdict is {sound.verdict} already", with_run, None)
        build_for(bare.deployment)
        write_mark(state_dir, "ablate", name, {"digest": request.deployment.digest})
        try:
            stop_locked(request.project, runtime, runtime.state(record.instance), record, record.stop_timeout_s)
            say(f"starting {bare.deployment.instance_name} without the patch")
            # A start that is refused, or takes too long, says nothing about the patch.
            other = start_locked(bare, environ)
            try:
                wait_for(runtime, other, environ, on_phase)
            except DeployError as error:
                if error.code == ExitCode.TIMEOUT:
                    raise
                return Ablation("LOAD_BEARING", f"without it the engine does not come up: {error.what}", with_run, None)
            broken, without_run = accept_running(bare, other, environ, mode, arm="without", say=say)
        finally:
            _bring_back(request, runtime, record, environ, say, on_phase)
    reason = broken.reasons[0] if broken.reasons else "every probe passes without it too"
    return Ablation(_BEARINGS.get(broken.verdict, "UNDECIDED"), reason, with_run, without_run)


def _bring_back(
    request: Request, runtime: Runtime, record: StartRecord, environ: Mapping[str, str], say: Say, on_phase: OnPhase
) -> None:
    """Start the instance with the patch again, in place of what runs."""
    bring_back(request.project, runtime, record, environ, deed="ablate", say=say, on_phase=on_phase)
    clear_mark(request.project.state_dir(), "ablate", record.layout)
