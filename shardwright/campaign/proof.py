"""Prove that the running engine of a layout runs its patches: gather what can be seen of it, and have it judged."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from shardwright.campaign.engines import runtime_of
from shardwright.campaign.launch import newest_instance
from shardwright.campaign.request import Request
from shardwright.connect.processes import environment_of, identify
from shardwright.connect.trees import PACKAGE, InstalledTree, SourceTree
from shardwright.errors import DeployError
from shardwright.facts.virtual_tp import SIDECAR_KEY
from shardwright.overlay import inspector
from shardwright.overlay.lock import Lock, read_lock
from shardwright.overlay.prove import (
    CONDITIONS,
    Proof,
    ProofRow,
    bytes_rung,
    expected_hits,
    hits_rung,
    import_rung,
    reach_rung,
)
from shardwright.overlay.reach import Reacher
from shardwright.overlay.verdicts import Verdict
from shardwright.resolve.deployment import Deployment, OverlayPlan

_INSPECTION_TIMEOUT_S = 300


class _Engine(Protocol):
    """One running engine, looked at from outside."""

    @property
    def identity(self) -> str: ...

    def mounted(self) -> tuple[str, ...]:
        """Files and folders below its vllm package that the overlay gives it."""
        ...

    def inspect(self, request: Mapping[str, list[str]]) -> dict[str, Any]:
        """Run the inspector in its interpreter."""
        ...

    def tree(self) -> SourceTree:
        """Its files as it sees them."""
        ...


def prove_deployment(request: Request) -> Proof:
    """All four rungs on the newest running engine of the layout. DeployError when there is nothing to look at."""
    deployment = request.deployment
    overlay = deployment.overlay
    if overlay is None:
        raise DeployError(f"{deployment.name} names no patches", fix="deploy patch list")
    lock = read_lock(Path(overlay.directory))
    if lock is None:
        raise DeployError(
            f"the overlay of {deployment.name} was not built", fix=f"deploy patch build {deployment.name}"
        )
    runtime = runtime_of(deployment.runtime, request.project.root)
    state = newest_instance(runtime, deployment.name)
    if state.status != "running":
        raise DeployError(f"{state.name} does not run ({state.status})", fix=f"deploy start {deployment.name}")
    engine: _Engine
    if deployment.runtime == "local":
        engine = _LocalEngine(int(state.identifier), deployment, overlay)
    else:
        engine = _ContainerEngine(state.name, deployment, overlay)
    rows = [
        *_identity(deployment, lock, engine),
        *bytes_rung(lock, _inside(engine, lock), _on_host(overlay, lock), engine.mounted(), deployment.name),
        *_imports_and_reach(request, lock, engine),
        *_hits(request, list(runtime.logs(state.name))),
    ]
    return Proof(state.name, tuple(rows))


def _identity(deployment: Deployment, lock: Lock, engine: _Engine) -> Iterator[ProofRow]:
    if engine.identity != lock.engine:
        yield ProofRow(
            "bytes",
            Verdict.IMAGE_CHANGED.value,
            "",
            "engine",
            f"runs {engine.identity}, the overlay was built from {lock.engine}",
            f"deploy patch build {deployment.name}, then start it again",
        )


def _inside(engine: _Engine, lock: Lock) -> Mapping[str, str | None]:
    files: Mapping[str, str | None] = engine.inspect({"files": list(lock.results()), "modules": [], "models": []})[
        "files"
    ]
    return files


def _on_host(overlay: OverlayPlan, lock: Lock) -> dict[str, str | None]:
    root = Path(overlay.directory) / PACKAGE
    return {relative: _sha256(root / relative) for relative in lock.results()}


def _sha256(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _imports_and_reach(request: Request, lock: Lock, engine: _Engine) -> Iterator[ProofRow]:
    deployment, model = request.deployment, request.facts.model
    architecture = model.architecture if model else ""
    reacher = Reacher(engine.tree())
    verdicts: dict[str, dict[str, bool | None]] = {}
    spare: dict[str, list[str]] = {}
    modules: list[str] = []
    for patch in deployment.patches:
        edits = patch.edits_for(deployment.engine.vllm)
        names = [*([architecture] if architecture else patch.reach.models), *_drafts(deployment, patch.reach.drafts)]
        verdicts[patch.id] = {edit.id: reacher.reached(edit, names, deployment.platform) for edit in edits}
        idle = () if deployment.speculation.active else patch.reach.drafts
        spare[patch.id] = [edit.id for edit in edits if reacher.reached(edit, idle, deployment.platform)]
        # What another platform needs may not even import here.
        modules += [edit.module for edit in edits if verdicts[patch.id][edit.id] is not False]
    modules = list(dict.fromkeys(module.removesuffix(".__init__") for module in modules))
    seen = engine.inspect({"files": [], "modules": modules, "models": [architecture] if architecture else []})
    yield from import_rung(lock, seen["root"], seen["imports"], deployment.name)
    classes = seen["models"].get(architecture, {}).get("classes", [])
    yield from _served_row(architecture, classes, reacher, deployment)
    for patch in deployment.patches:
        edits = patch.edits_for(deployment.engine.vllm)
        served = classes[0] if classes else architecture or "the model"
        yield from reach_rung(
            patch, edits, verdicts[patch.id], served, deployment.platform, deployment.name, spare[patch.id]
        )


def _served_row(architecture: str, classes: list[str], reacher: Reacher, deployment: Deployment) -> Iterator[ProofRow]:
    """The class that the engine's registry really gives, beside the one that was followed in its source."""
    closure = reacher.closure(architecture, deployment.platform) if architecture else None
    if closure is None or not classes:
        return
    followed = f"{closure.served.module}:{closure.served.name}"
    verdict = Verdict.OK if classes[0] == followed else Verdict.UNREACHED
    message = f"{architecture} is served by {classes[0]}"
    if verdict is not Verdict.OK:
        message += f", the source was followed from {followed}"
    fix = "" if verdict is Verdict.OK else "check hf_overrides and plugins: the engine serves another class"
    yield ProofRow("reach", verdict.value, "", architecture, message, fix)


def _drafts(deployment: Deployment, drafts: tuple[str, ...]) -> tuple[str, ...]:
    return drafts if deployment.speculation.active else ()


def _hits(request: Request, log: list[str]) -> Iterator[ProofRow]:
    deployment, parallel = request.deployment, request.deployment.parallel
    stages = request.assessment.plan.stages
    orphans = [stage.orphans for stage in stages] or [() for _stage in range(parallel.pipeline)]
    conditions = _conditions(request)
    for patch in deployment.patches:
        expected = expected_hits(patch, orphans, parallel.tensor, conditions)
        yield from hits_rung(patch, expected, log, deployment.name)


def _conditions(request: Request) -> frozenset[str]:
    """Those of `CONDITIONS` that hold; a model folder whose config is not known counts as padded."""
    found = request.facts.virtual_tp
    holds = {"padded": found is None or SIDECAR_KEY in found.config, "draft": request.deployment.speculation.active}
    return frozenset(name for name in CONDITIONS if holds[name])


def _inspection(command: list[str], environment: Mapping[str, str] | None, where: str) -> dict[str, Any]:
    try:
        result = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INSPECTION_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"{where} cannot be inspected: {error}"[:300]) from None
    for line in reversed(result.stdout.splitlines()):
        if line.startswith(inspector.MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(inspector.MARK))
            return answer
    complaint = (result.stderr.strip().splitlines() or ["no answer"])[-1]
    raise DeployError(f"{where} cannot be inspected: {complaint[:200]}")


def _script() -> str:
    return Path(inspector.__file__).read_text(encoding="utf-8")


class _ContainerEngine:
    def __init__(self, name: str, deployment: Deployment, overlay: OverlayPlan) -> None:
        from shardwright.connect.container_tree import ContainerTree

        self._name = name
        self._tool = deployment.container.tool
        self._overlay = overlay
        self._tree = ContainerTree(name, str(overlay.package_root), deployment.engine.vllm)
        self.identity = self._tree.identity

    def mounted(self) -> tuple[str, ...]:
        ours = str(Path(self._overlay.directory) / PACKAGE)
        return tuple(
            target.removeprefix(f"{self._tree.root}/")
            for target, source in self._tree.mounts.items()
            if target.startswith(f"{self._tree.root}/") and source.startswith(f"{ours}/")
        )

    def inspect(self, request: Mapping[str, list[str]]) -> dict[str, Any]:
        command = [self._tool, "exec", self._name, "python3", "-P", "-c", _script(), json.dumps(request)]
        return _inspection(command, None, f"the container {self._name}")

    def tree(self) -> SourceTree:
        return self._tree


class _LocalEngine:
    def __init__(self, pid: int, deployment: Deployment, overlay: OverlayPlan) -> None:
        self._python = str(deployment.engine.python)
        self._vllm = deployment.engine.vllm
        self._overlay = overlay
        # What the engine was really started with, not what the layout says today.
        process = identify(pid)
        environment = environment_of(process) if process else None
        if environment is None:
            raise DeployError(f"process {pid} cannot be looked into", why="it has ended, or it is another user's")
        self._environment = environment
        self.identity = InstalledTree(self._python).identity

    def mounted(self) -> tuple[str, ...]:
        farm = Path(self._overlay.farm)
        first = self._environment.get("PYTHONPATH", "").split(os.pathsep)[0]
        if not first or Path(first).resolve() != farm.resolve():
            return ()
        files = (path.relative_to(farm / PACKAGE) for path in (farm / PACKAGE).rglob("*.py") if not path.is_symlink())
        return tuple(str(relative) for relative in files)

    def inspect(self, request: Mapping[str, list[str]]) -> dict[str, Any]:
        command = [self._python, "-P", "-c", _script(), json.dumps(request)]
        return _inspection(command, self._environment, self._python)

    def tree(self) -> SourceTree:
        return _FarmTree(Path(self._overlay.farm) / PACKAGE, self._vllm)


class _FarmTree:
    def __init__(self, root: Path, vllm_version: str) -> None:
        self.root = str(root)
        self.identity = f"farm:{root}"
        self.vllm_version = vllm_version

    def read(self, relative: str) -> bytes:
        return Path(self.root, relative).read_bytes()

    def exists(self, relative: str) -> bool:
        return Path(self.root, relative).exists()
