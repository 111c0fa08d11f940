"""Start and verify: check, build, start, wait, prove, probe. It ends at the first refusal and leaves the evidence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwright.campaign import audit, hooks
from shardwright.campaign.bundle_contents import put_engine, put_observed, put_proof, put_request
from shardwright.campaign.engine_steps import (
    OnPhase,
    Say,
    alive_instances,
    api_key,
    record_of_running,
    wait_for,
)
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.evidence import Bundle, free_folder, open_bundle
from shardwright.campaign.launch import start_locked, stop_locked, writing
from shardwright.campaign.marks import clear_mark, read_mark, write_mark
from shardwright.campaign.overlays import build_for
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.proof import prove_deployment
from shardwright.campaign.proven import ProvenRun, add_proven
from shardwright.campaign.records import StartRecord, read_record
from shardwright.campaign.request import Request
from shardwright.campaign.rollback import previous_proven, rollback_locked
from shardwright.campaign.verify import Verified, secret_values, verify
from shardwright.errors import DeployError, ExitCode
from shardwright.probes.report import EXIT_CODES, Verdict
from shardwright.probes.wire import Endpoint
from shardwright.runtime.base import EngineState, Runtime
from shardwright.runtime.wait import ignore_event

ARM = "up"


@dataclass(frozen=True)
class UpOptions:
    """`replace` lets it stop another deployment of the layout that runs; `auto_rollback` returns to it on failure."""

    mode: Mode = "quick"
    replace: bool = False
    auto_rollback: bool = False
    message: str = ""


@dataclass(frozen=True)
class UpOutcome:
    """How it ended. `rolled_back_to` names the instance that runs again after a failed candidate."""

    verdict: Verdict
    reasons: tuple[str, ...]
    instance: str
    run: Path
    rolled_back_to: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODES[self.verdict]


def up(
    request: Request,
    environ: Mapping[str, str],
    options: UpOptions = UpOptions(),
    *,
    say: Say = lambda _: None,
    on_phase: OnPhase = ignore_event,
) -> UpOutcome:
    """Bring the deployment of `request` up and accept it, or say why not.

    Each step finds out for itself what is done already, so a run that was killed at any point is taken up by the same
    call, into the same bundle. Raises DeployError at the first refusal; with `auto_rollback` the deployment before it
    runs again by then.
    """
    name, state_dir = request.deployment.name, request.project.state_dir()
    with writing(state_dir, name, f"deploy up {name}", options.message) as dead:
        if dead:
            say(f"taking up what was left by {dead}")
        bundle = _bundle(request)
        campaign = _Up(request, environ, options, bundle, say, on_phase)
        try:
            return campaign.run()
        except DeployError as error:
            bundle.put("refused.json", {"what": error.what, "why": error.why, "fix": error.fix, "exit": error.code})
            bundle.seal()
            clear_mark(state_dir, "up", name)
            say(f"evidence: {bundle.folder}")
            if campaign.started and options.auto_rollback:
                campaign.go_back(error.what)
            raise


class _Up:
    def __init__(
        self,
        request: Request,
        environ: Mapping[str, str],
        options: UpOptions,
        bundle: Bundle,
        say: Say,
        on_phase: OnPhase,
    ) -> None:
        self._request = request
        self._deployment = request.deployment
        self._project = request.project
        self._state_dir = request.project.state_dir()
        self._environ = environ
        self._options = options
        self._bundle = bundle
        self._say = say
        self._on_phase = on_phase
        self._runtime: Runtime = runtime_of(request.deployment.runtime, request.project.root)
        self.started = False

    def run(self) -> UpOutcome:
        self._check()
        self._build()
        record = self._start()
        self.started = True
        self._wait(record)
        self._prove()
        verified = self._verify(record)
        return self._end(record, verified)

    def go_back(self, why: str) -> str | None:
        """Return to the accepted deployment before this one; None, said aloud, where there is none."""
        name = self._deployment.name
        if previous_proven(self._project, name, self._deployment.instance_name) is None:
            self._say(
                f"no accepted deployment of {name} to go back to; {self._deployment.instance_name} is left as it is"
            )
            return None
        self._say(f"going back: {why}")
        return rollback_locked(self._project, name, self._environ, say=self._say, on_phase=self._on_phase).instance

    def _mark(self, step: str) -> None:
        write_mark(
            self._state_dir,
            "up",
            self._deployment.name,
            {"digest": self._deployment.digest, "run": str(self._bundle.folder), "step": step},
        )

    def _check(self) -> None:
        self._mark("check")
        put_request(self._bundle, self._request, ARM)
        if self._request.assessment.refused:
            first = self._request.assessment.findings[0]
            raise DeployError(
                f"refused by {first.gate}: {first.message}",
                why=first.why,
                fix=first.fix or f"deploy check {self._deployment.name}",
            )
        self._say("check: no gate refuses")

    def _build(self) -> None:
        self._mark("build")
        built = build_for(self._deployment)
        if built is not None:
            self._say(f"build: overlay {built.lock.lock_sha256[:12]}")

    def _start(self) -> StartRecord:
        self._mark("start")
        name = self._deployment.instance_name
        alive = alive_instances(self._runtime, self._deployment.name)
        if any(state.name == name for state in alive):
            self._say(f"start: {name} runs already")
            return record_of_running(self._request, self._runtime)
        for state in alive:
            self._stop_other(state)
        clear_mark(self._state_dir, "rollback", self._deployment.name)
        record = start_locked(self._request, self._environ)
        self._say(f"start: {record.instance}")
        return record

    def _stop_other(self, state: EngineState) -> None:
        if not self._options.replace:
            raise DeployError(
                f"{state.name} runs, which is another deployment of {self._deployment.name}",
                why="both cannot have the cards and the port",
                fix=f"deploy up {self._deployment.name} --replace; the stopped one is kept for deploy rollback",
            )
        record = read_record(self._state_dir, self._deployment.name)
        if record is None:
            raise DeployError(
                f"{state.name} runs, but nothing is on record of it", fix="stop it by hand, then deploy up again"
            )
        stop_locked(self._project, self._runtime, state, record, record.stop_timeout_s)
        self._say(f"stop: {state.name} (kept)")

    def _wait(self, record: StartRecord) -> None:
        self._mark("wait")
        try:
            ready = wait_for(self._runtime, record, self._environ, self._on_phase)
        finally:
            put_observed(self._bundle, self._request, self._runtime.logs(record.instance))
        self._say(f"wait: ready after {ready.elapsed_s:.0f} s")
        put_engine(self._bundle, self._deployment, self._runtime.engine_identity(self._deployment))
        hooks.run(
            self._project,
            "post-ready",
            hooks.facts_of(self._deployment) | {"DEPLOY_RUN_DIR": str(self._bundle.folder)},
            self._deployment.secrets,
        )

    def _prove(self) -> None:
        self._mark("prove")
        if self._deployment.overlay is None:
            put_proof(self._bundle, None)
            return
        proof = prove_deployment(self._request)
        put_proof(self._bundle, proof)
        if proof.failures:
            row = proof.failures[0]
            raise DeployError(
                f"not proven: {row.rung} {row.subject}: {row.message}",
                why="the engine answers, but not through its patches",
                fix=row.fix or f"deploy patch prove {self._deployment.name}",
            )
        self._say(f"prove: {'all rungs' if proof.proven else 'no rung fails, ' + str(len(proof.unknown)) + ' unknown'}")

    def _verify(self, record: StartRecord) -> Verified:
        self._mark("verify")
        endpoint = Endpoint(record.base_url, api_key(record, self._environ))
        return verify(self._bundle, endpoint, record.model, self._request, self._options.mode, say=self._say)

    def _end(self, record: StartRecord, verified: Verified) -> UpOutcome:
        self._mark("verdict")
        facts = hooks.facts_of(self._deployment) | {
            "DEPLOY_RUN_DIR": str(self._bundle.folder),
            "DEPLOY_VERDICT": verified.verdict,
        }
        hooks.run(self._project, "verdict", facts, self._deployment.secrets)
        self._bundle.seal()
        overlay = self._deployment.overlay
        if verified.verdict == "PASS":
            run = ProvenRun(record, str(self._bundle.folder), overlay.directory if overlay else None, time.time())
            add_proven(self._state_dir, run)
        audit.note(self._state_dir, "verdict", record.layout, record.instance, detail=verified.verdict)
        clear_mark(self._state_dir, "up", record.layout)
        back = None
        if verified.verdict == "FAIL" and self._options.auto_rollback:
            back = self.go_back(verified.reasons[0] if verified.reasons else "the candidate failed")
        return UpOutcome(verified.verdict, verified.reasons, record.instance, self._bundle.folder, back)


def _bundle(request: Request) -> Bundle:
    """The bundle of an `up` of the same deployment that was cut off, else a new one."""
    deployment = request.deployment
    hidden = secret_values(deployment.secrets)
    mark = read_mark(request.project.state_dir(), "up", deployment.name)
    if mark.get("digest") == deployment.digest and isinstance(mark.get("run"), str):
        left = open_bundle(Path(mark["run"]), hidden)
        if not left.sealed:
            return left
    return open_bundle(free_folder(request.project.root, deployment.name, ARM), hidden)
