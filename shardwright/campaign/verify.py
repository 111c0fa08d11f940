"""Ask a running server everything that a mode asks, cheapest and most decisive first, and keep it as evidence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.campaign.evidence import REPORTS, VERDICT, Bundle, read_trials
from shardwright.campaign.overall import NOT_APPLICABLE, overall_of
from shardwright.campaign.probe_edges import edges_of
from shardwright.campaign.probe_table import Asked, Mode, Probe, asked_in
from shardwright.campaign.request import Request
from shardwright.errors import DeployError, ExitCode
from shardwright.probes.edges import Edges
from shardwright.probes.journal import Journal
from shardwright.probes.report import EXIT_CODES, ProbeReport, Verdict
from shardwright.probes.server import Server, identify
from shardwright.probes.wire import Endpoint, TransportError, get


@dataclass(frozen=True)
class Verified:
    """The overall verdict with the report of every probe of the mode, as stored."""

    verdict: Verdict
    reasons: tuple[str, ...]
    reports: tuple[Mapping[str, Any], ...]

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODES[self.verdict]


def verify(
    bundle: Bundle,
    endpoint: Endpoint,
    model: str | None,
    request: Request | None,
    mode: Mode,
    *,
    control: Path | None = None,
    fail_fast: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Verified:
    """Run the probes of a mode and write trials, reports, metrics and verdict into the bundle.

    With `fail_fast` the rest is not asked after the first FAIL or FAULT and stands as skipped. Probes whose report the
    bundle holds already are not asked again, so a run that was cut off goes on. Raises TransportError where nobody
    answers.
    """
    server = identify(endpoint, model)
    _keep_metrics(bundle, endpoint, "metrics-before.txt", replace=False)
    deployment = request.deployment if request else None
    declared = dict(deployment.probes.not_applicable) if deployment else {}
    asked = Asked(server, deployment, _edges(request, server), mode, _trials_of(control))
    reports: list[Mapping[str, Any]] = [report for report in bundle.read(REPORTS) or [] if report["verdict"] != "SKIP"]
    on_file = {report["probe"] for report in reports}
    ended = next((f"{report['probe']} ended as {report['verdict']}" for report in reports if _ends(report)), "")
    for probe in asked_in(mode):
        if probe.name in on_file:
            continue
        if probe.name in declared:
            report = _skipped(probe, NOT_APPLICABLE + declared[probe.name]).to_json()
        elif ended and fail_fast:
            report = _skipped(probe, f"not asked: {ended}").to_json()
        else:
            say(f"{probe.name} ...")
            report = _ask(probe, asked, bundle, say).to_json()
            if _ends(report):
                ended = f"{probe.name} ended as {report['verdict']}"
        say(f"{report['verdict']} {probe.name}" + "".join(f"\n  {line}" for line in report["reasons"][:5]))
        reports.append(report)
        bundle.put(REPORTS, reports)
    _keep_metrics(bundle, endpoint, "metrics-after.txt", replace=True)
    overall = overall_of(reports)
    bundle.put(VERDICT, overall | {"mode": mode})
    return Verified(overall["verdict"], tuple(overall["reasons"]), tuple(reports))


def verified_in(bundle: Bundle) -> Verified:
    """What `verify` returned for a bundle that it has filled."""
    overall = bundle.read(VERDICT)
    return Verified(overall["verdict"], tuple(overall["reasons"]), tuple(bundle.read(REPORTS)))


def secret_values(names: Iterable[str]) -> tuple[str, ...]:
    """Values that no file may hold, from the variables that a layout names and the customary ones."""
    wanted = {*names, "VLLM_API_KEY", "HF_TOKEN"}
    return tuple(value for name in sorted(wanted) if (value := os.environ.get(name)))


def _edges(request: Request | None, server: Server) -> Edges:
    """What the layout says, with the running server's own limit before the layout's."""
    edges = edges_of(request.deployment, request.facts) if request else Edges()
    return replace(edges, max_len=server.capabilities.max_model_len or edges.max_len)


def _ask(probe: Probe, asked: Asked, bundle: Bundle, say: Callable[[str], None]) -> ProbeReport:
    try:
        with Journal(bundle.trials(probe.name), bundle.secrets) as journal:
            return probe.run(asked, journal, say)
    except TransportError as error:
        return _ended(probe, "FAULT", error.detail)
    except DeployError as error:
        if error.code not in (ExitCode.HARNESS, ExitCode.INCONCLUSIVE):
            raise
        return _ended(probe, "FAULT" if error.code == ExitCode.HARNESS else "INCONCLUSIVE", error.what)


def _ends(report: Mapping[str, Any]) -> bool:
    return report["verdict"] in ("FAIL", "FAULT")


def _skipped(probe: Probe, reason: str) -> ProbeReport:
    return _ended(probe, "SKIP", reason)


def _ended(probe: Probe, verdict: Verdict, reason: str) -> ProbeReport:
    """A report without a trial behind it. It names no plan, since nothing of it can be made again."""
    return ProbeReport(probe.name, verdict, (reason,), 0, 0, 0, {}, plan="", file="")


def _keep_metrics(bundle: Bundle, endpoint: Endpoint, name: str, *, replace: bool) -> None:
    if not replace and (bundle.folder / name).exists():
        return
    try:
        reply = get(endpoint, "/metrics")
    except TransportError as error:
        bundle.put_text(name, f"# not to be had: {error.detail}\n")
        return
    text = reply.body.decode("utf-8", "replace") if reply.status == 200 else f"# HTTP {reply.status}\n"
    bundle.put_text(name, text)


def _trials_of(control: Path | None) -> Mapping[str, tuple[dict[str, Any], ...]]:
    if control is None:
        return {}
    bundle = Bundle(control)
    folder = control / "trials"
    return {file.stem: tuple(read_trials(bundle, file.stem)) for file in sorted(folder.glob("*.jsonl"))}
