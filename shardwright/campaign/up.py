"""Start and verify: check, build, start, wait, prove, probe. It ends at the first refusal and leaves the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shardwright.campaign import audit, hooks
from shardwright.campaign.bundle_contents import put_refusal, put_request
from shardwright.campaign.engine_steps import (
    OnPhase,
    Say,
    alive_instances,
    api_key,
    prove_running,
    record_of_running,
    wait_for_candidate,
)
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.evidence import Bundle, take_up
from shardwright.campaign.launch import ALIVE, start_locked, started_record, writing
from shardwright.campaign.marks import clear_mark, read_mark, write_mark
from shardwright.campaign.overlays import build_for
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.records import StartRecord
from shardwright.campaign.request import Request, refuse_rejected
from shardwright.campaign.rollback import rollback_locked
from shardwright.campaign.verify import Verified, secret_values, verify
from shardwright.campaign.way_back import accepted_before, make_way, note_accepted, noted_way_back
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
            outcome = campaign.run()
        except DeployError as error:
            try:
                put_refusal(bundle, error)
                clear_mark(state_dir, "up", name)
                say(f"evidence: {bundle.folder}")
            finally:
                if campaign.has_switched and options.auto_rollback:
                    campaign.go_back(error.what)
            raise
        if options.auto_rollback and campaign.has_failed(outcome):
            why = outcome.reasons[0] if outcome.reasons else f"{outcome.instance} has ended"
            return replace(outcome, rolled_back_to=campaign.go_back(why))
        return outcome


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
        self.has_switched = False
        """Whether what ran before is stopped, so that a failure from here on leaves nothing or a bad engine."""

    def run(self) -> UpOutcome:
        self._check()
        self._build()
        record = self._start()
        self._wait(record)
        self._prove()
        verified = self._verify(record)
        return self._end(record, verified)

    def has_failed(self, outcome: UpOutcome) -> bool:
        """Whether the candidate failed, rather than that nothing can be said. One that has ended did."""
        return outcome.verdict == "FAIL" or self._runtime.state(outcome.instance).status not in ALIVE

    def go_back(self, why: str) -> str | None:
        """Return to the accepted deployment before this one; None, said aloud, where there is none."""
        name, candidate = self._deployment.name, self._deployment.instance_name
        target = noted_way_back(self._project, name)
        if target is None or target.record.instance == candidate:
            target = accepted_before(self._project, name, candidate)
        if target is None:
            self._say(f"no accepted deployment of {name} to go back to; {candidate} is left as it is")
            return None
        self._say(f"going back: {why}")
        return rollback_locked(self._project, target, self._environ, say=self._say, on_phase=self._on_phase).instance

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
        refuse_rejected(self._request, "not started")
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
            self.has_switched = True
            return record_of_running(self._request, self._runtime)
        for state in alive:
            self._stop_other(state)
        self.has_switched = True
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
        record = started_record(self._state_dir, self._deployment, state)
        make_way(self._project, self._runtime, state, record)
        self.has_switched = True
        self._say(f"stop: {state.name} (kept)")

    def _wait(self, record: StartRecord) -> None:
        self._mark("wait")
        ready = wait_for_candidate(self._request, self._runtime, record, self._bundle, self._environ, self._on_phase)
        self._say(f"wait: ready after {ready.elapsed_s:.0f} s")

    def _prove(self) -> None:
        self._mark("prove")
        proof = prove_running(self._request, self._bundle)
        if proof is not None:
            unknown = f"no rung fails, {len(proof.unknown)} unknown"
            self._say(f"prove: {'all rungs' if proof.proven else unknown}")

    def _verify(self, record: StartRecord) -> Verified:
        self._mark("verify")
        endpoint = Endpoint(record.base_url, api_key(record, self._environ))
        return verify(self._bundle, endpoint, record.model, self._request, self._options.mode, say=self._say)

    def _end(self, record: StartRecord, verified: Verified) -> UpOutcome:
        self._mark("verdict")
        hooks.run_for(self._project, "verdict", self._deployment, run=self._bundle.folder, verdict=verified.verdict)
        self._bundle.seal()
        overlay = self._deployment.overlay
        if verified.verdict == "PASS":
            note_accepted(self._project, record, str(self._bundle.folder), overlay.directory if overlay else None)
        audit.note(self._state_dir, "verdict", record.layout, record.instance, detail=verified.verdict)
        clear_mark(self._state_dir, "up", record.layout)
        return UpOutcome(verified.verdict, verified.reasons, record.instance, self._bundle.folder)


def _bundle(request: Request) -> Bundle:
    """The bundle of an `up` of the same deployment that was cut off, else a new one."""
    deployment = request.deployment
    mark = read_mark(request.project.state_dir(), "up", deployment.name)
    left = mark["run"] if mark.get("digest") == deployment.digest and isinstance(mark.get("run"), str) else None
    return take_up(left, request.project.root, deployment.name, ARM, secret_values(deployment.secrets))
