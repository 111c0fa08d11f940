"""The same prompts on two boots of one deployment: weights that nobody loaded answer differently each time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardwright.campaign import audit
from shardwright.campaign.bundle_contents import put_engine, put_observed, put_request
from shardwright.campaign.engine_steps import (
    OnPhase,
    Say,
    alive_instances,
    api_key,
    record_of_running,
    start_again,
    wait_for,
)
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.evidence import REPORTS, VERDICT, Bundle, free_folder, open_bundle, read_trials
from shardwright.campaign.launch import stop_locked, writing
from shardwright.campaign.marks import clear_mark, read_mark, write_mark
from shardwright.campaign.overall import overall_of
from shardwright.campaign.probe_edges import edges_of
from shardwright.campaign.records import StartRecord, read_record
from shardwright.campaign.request import Request
from shardwright.campaign.verify import secret_values
from shardwright.errors import DeployError
from shardwright.probes.journal import Journal
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import identify
from shardwright.probes.wire import Endpoint
from shardwright.runtime.base import Runtime
from shardwright.runtime.wait import ignore_event

ARM = "boots"
FIRST, SECOND = "boots-1", "boots-2"


def run_boots(
    request: Request,
    environ: Mapping[str, str],
    *,
    message: str = "",
    say: Say = lambda _: None,
    on_phase: OnPhase = ignore_event,
) -> tuple[ProbeReport, Path]:
    """Ask, stop, start again, ask the same, compare. The engine runs at the end as it did at the beginning.

    Killed in between, the same command starts the engine again and goes on. DeployError where it does not run.
    """
    deployment, state_dir = request.deployment, request.project.state_dir()
    name = deployment.name
    with writing(state_dir, name, f"deploy boots {name}", message):
        runtime = runtime_of(deployment.runtime, request.project.root)
        mark = read_mark(state_dir, "boots", name)
        taken_up = mark.get("digest") == deployment.digest
        folder = Path(mark["run"]) if taken_up else free_folder(request.project.root, name, ARM)
        bundle = open_bundle(folder, secret_values(deployment.secrets))
        record = _left_stopped(request, runtime) if taken_up and not alive_instances(runtime, name) else None
        if record is None:
            record = record_of_running(request, runtime)
            if not (taken_up and bundle.trials(SECOND).exists()):
                write_mark(state_dir, "boots", name, {"digest": deployment.digest, "run": str(folder)})
                put_request(bundle, request, ARM)
                put_engine(bundle, deployment, runtime.engine_identity(deployment))
                _ask(request, environ, bundle, record, FIRST, say)
                stop_locked(request.project, runtime, runtime.state(record.instance), record, record.stop_timeout_s)
        start_again(request.project, runtime, record, environ)
        wait_for(runtime, record, environ, on_phase)
        put_observed(bundle, request, runtime.logs(record.instance))
        _ask(request, environ, bundle, record, SECOND, say)
        report = boots_again(bundle)
        bundle.put(REPORTS, [report.to_json()])
        bundle.put(VERDICT, overall_of([report.to_json()]) | {"mode": ARM})
        bundle.seal()
        audit.note(state_dir, "boots", name, record.instance, detail=report.verdict)
        clear_mark(state_dir, "boots", name)
        return report, folder


def boots_again(bundle: Bundle) -> ProbeReport:
    """The comparison of the two boots, from the stored trials."""
    from shardwright.probes.repeat.report import compare_boots

    return compare_boots(read_trials(bundle, FIRST), read_trials(bundle, SECOND))


def _ask(
    request: Request, environ: Mapping[str, str], bundle: Bundle, record: StartRecord, trials: str, say: Say
) -> None:
    from shardwright.probes.repeat.run import quick_plan, run_repeat

    server = identify(Endpoint(record.base_url, api_key(record, environ)), record.model)
    plan = quick_plan(edges_of(request.deployment, request.facts), deployment=request.deployment.digest)
    say(f"{trials}: {plan.budget()}")
    with Journal(bundle.trials(trials), bundle.secrets) as journal:
        run_repeat(server, plan, journal)


def _left_stopped(request: Request, runtime: Runtime) -> StartRecord:
    """What a `boots` that was killed between stop and start has left."""
    record = read_record(request.project.state_dir(), request.deployment.name)
    if record is None or runtime.state(record.instance).status == "absent":
        name = request.deployment.name
        raise DeployError(f"nothing of {name} runs or can be started again", fix=f"deploy up {name}")
    return record
