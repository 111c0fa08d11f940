"""Is a patch load-bearing: the same probes with it and without it, on the same engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardwright.campaign import audit
from shardwright.campaign.acceptance import accept_running
from shardwright.campaign.engine_steps import OnPhase, Say, alive_instances, record_of_running, start_again, wait_for
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.launch import start_locked, stop_locked, writing
from shardwright.campaign.overlays import build_for
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.request import Request
from shardwright.errors import DeployError, ExitCode, UsageError
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

    The engine with the patch runs again at the end, whatever the other one did.
    """
    name, state_dir = request.deployment.name, request.project.state_dir()
    if bare.assessment.refused:
        first = bare.assessment.findings[0]
        raise DeployError(f"without the patch {first.gate} refuses: {first.message}", why=first.why, fix=first.fix)
    with writing(state_dir, name, f"deploy verify --ablate {name}", message):
        runtime = runtime_of(request.deployment.runtime, request.project.root)
        record = record_of_running(request, runtime)
        sound, with_run = accept_running(request, record, environ, mode, arm="with", say=say)
        if sound.verdict != "PASS":
            return Ablation("UNDECIDED", f"with the patch the verdict is {sound.verdict} already", with_run, None)
        build_for(bare.deployment)
        try:
            stop_locked(request.project, runtime, runtime.state(record.instance), record, record.stop_timeout_s)
            say(f"starting {bare.deployment.instance_name} without the patch")
            try:
                other = start_locked(bare, environ)
                wait_for(runtime, other, environ, on_phase)
            except DeployError as error:
                return Ablation("LOAD_BEARING", f"without it the engine does not come up: {error.what}", with_run, None)
            broken, without_run = accept_running(bare, other, environ, mode, arm="without", say=say)
        finally:
            for state in alive_instances(runtime, name):
                if state.name != record.instance:
                    runtime.stop(state.name, record.stop_timeout_s)
            say(f"starting {record.instance} again")
            start_again(request.project, runtime, record, environ)
            audit.note(state_dir, "ablate", name, record.instance)
            wait_for(runtime, record, environ, on_phase)
    reason = broken.reasons[0] if broken.reasons else "every probe passes without it too"
    return Ablation(_BEARINGS.get(broken.verdict, "UNDECIDED"), reason, with_run, without_run)
