"""What goes into a bundle about the deployment itself: command, image, overlay, gates, plan, log, proof."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from shardwright import __version__
from shardwright.campaign.evidence import MANIFEST, SCHEMA, Bundle
from shardwright.campaign.planning import PlanRequest, compare_with_log, report_plan
from shardwright.campaign.request import Request
from shardwright.connect.locks import performer
from shardwright.errors import DeployError
from shardwright.overlay.lock import read_lock
from shardwright.overlay.prove import Proof
from shardwright.plan.index_sharing import full_layers
from shardwright.render.command import render
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import Runtime

_LOG_HEAD_LINES = 4000
_LOG_TAIL_LINES = 8000


def put_request(bundle: Bundle, request: Request, arm: str) -> None:
    """Manifest, command with origins, overlay lock, gates and waivers, predicted plan."""
    deployment = request.deployment
    user, host = performer()
    model = request.facts.model
    bundle.put(
        MANIFEST,
        {
            "schema": SCHEMA,
            "tool_version": __version__,
            "layout": deployment.name,
            "arm": arm,
            "instance": deployment.instance_name,
            "digest": deployment.digest,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "user": user,
            "host": host,
            "runtime": deployment.runtime,
            "base_url": deployment.base_url,
            "model": {
                "path": deployment.model.path,
                "revision": deployment.model.revision,
                "served_as": deployment.served_model_name,
                "architecture": model.architecture if model else None,
            },
            "parallel": {
                "tensor": deployment.parallel.tensor,
                "pipeline": deployment.parallel.pipeline,
                "partition": list(request.assessment.plan.partition),
            },
            "patches": [{"id": patch.id, "digest": patch.digest} for patch in deployment.patches],
        },
    )
    command = render(deployment)
    bundle.put(
        "command.json",
        {
            "shell": shlex.join(command.argv),
            "parts": [{"kind": part.kind, "tokens": part.tokens, "origin": str(part.origin)} for part in command.parts],
            "env": [{"name": pair.name, "value": pair.value, "origin": str(pair.origin)} for pair in deployment.env],
            "secrets": deployment.secrets,
            "overrides": [str(override) for override in request.overrides],
        },
    )
    lock = read_lock(Path(deployment.overlay.directory)) if deployment.overlay else None
    if lock is not None:
        bundle.put("overlay.lock.json", msgspec.to_builtins(lock))
    assessment = request.assessment
    bundle.put(
        "gates.json",
        {
            "verdict": assessment.verdict,
            "findings": [msgspec.to_builtins(finding) for finding in assessment.findings],
            "waivers": deployment.waivers,
        },
    )
    bundle.put("plan.json", {"predicted": _predicted(request), "observed": None, "differences": []})


def put_engine(bundle: Bundle, deployment: Deployment, identity: str) -> None:
    """What really runs. `identity`: the image id, or the installed package."""
    engine = deployment.engine
    bundle.put(
        "image.json", {"image": engine.image, "digest": engine.digest, "identity": identity, "vllm": engine.vllm}
    )


def put_observed(bundle: Bundle, request: Request, lines: Iterable[str]) -> None:
    """The engine's log, and predicted memory beside what it logs."""
    log = list(lines)
    cut = len(log) - _LOG_HEAD_LINES - _LOG_TAIL_LINES
    kept = log if cut <= 0 else [*log[:_LOG_HEAD_LINES], f"[{cut} lines left out]", *log[-_LOG_TAIL_LINES:]]
    bundle.put_text("engine.log", "".join(f"{line}\n" for line in kept))
    plan: dict[str, Any] = bundle.read("plan.json") or {}
    try:
        observed, differences = compare_with_log(_plan_request(request), log)
    except DeployError as error:
        bundle.put("plan.json", plan | {"observed": None, "differences": [], "why": error.what})
        return
    rows = [
        {"what": row.what, "predicted": row.predicted, "actual": row.actual, "is_finding": row.is_finding}
        for row in differences
    ]
    bundle.put("plan.json", plan | {"observed": msgspec.to_builtins(observed), "differences": rows})


def put_running(bundle: Bundle, request: Request, arm: str, runtime: Runtime, instance: str) -> None:
    """All of the above, of an instance that runs."""
    put_request(bundle, request, arm)
    put_engine(bundle, request.deployment, runtime.engine_identity(request.deployment))
    put_observed(bundle, request, runtime.logs(instance))


def put_refusal(bundle: Bundle, error: DeployError) -> None:
    """Why the run ended before its verdict, and the seal. A bundle that is sealed already has its verdict."""
    if not bundle.sealed:
        bundle.put("refused.json", {"what": error.what, "why": error.why, "fix": error.fix, "exit": error.code})
        bundle.seal()


def put_proof(bundle: Bundle, proof: Proof | None) -> None:
    """The patch proof ladder; `null` for a deployment without patches."""
    bundle.put("proof.json", proof.as_data() if proof else None)


def _predicted(request: Request) -> dict[str, Any]:
    plan = request.assessment.plan
    model = request.facts.model
    rule = model.index_rule if model else None
    full = full_layers(rule, model.num_layers) if model and rule else ()
    stages: list[dict[str, Any]] = [
        {
            "stage": stage.index,
            "first_layer": stage.first_layer,
            "last_layer": stage.end_layer - 1,
            "orphans": stage.orphans,
            "full_layers": [layer for layer in full if stage.first_layer <= layer < stage.end_layer],
        }
        for stage in plan.stages
    ]
    data: dict[str, Any] = {"indexed": bool(rule), "partition": plan.partition, "stages": stages, "pool": None}
    try:
        data["pool"] = msgspec.to_builtins(report_plan(_plan_request(request)).pool)
    except DeployError as error:
        data["why"] = error.what
    return data


def _plan_request(request: Request) -> PlanRequest:
    return PlanRequest(request.project, request.overrides, request.facts, request.deployment)
