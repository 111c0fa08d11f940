"""Layout + facts + patch metadata to a `Deployment`."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from shardwright.connect.project import Project
from shardwright.facts.facts import Facts
from shardwright.facts.gather import locate_model
from shardwright.facts.spec_support import SpecTable
from shardwright.layout.provenance import Origin
from shardwright.layout.schema import Layout, Model
from shardwright.overlay.library import find_patch
from shardwright.overlay.patch import Patch
from shardwright.overlay.targets import series_key, targets
from shardwright.resolve import compile_cache, rules
from shardwright.resolve.arguments import serve_arguments, to_json
from shardwright.resolve.deployment import Argument, Deployment, EnvPair, Mount, OverlayPlan, RuleNote, Speculation
from shardwright.resolve.weight_tracking import with_weight_tracking

# Where the official CUDA images keep the package; another image says so with engine.package_root.
OFFICIAL_PACKAGE_ROOT = "/usr/local/lib/python3.12/dist-packages/vllm"


class _Overlays(Struct, frozen=True):
    patches: tuple[Patch, ...]
    unknown: tuple[str, ...]
    plan: OverlayPlan | None
    mounts: tuple[Mount, ...]
    env: tuple[EnvPair, ...]


def resolve(layout: Layout, facts: Facts, table: SpecTable, project: Project) -> Deployment:
    """The deployment that a layout means, every value with its origin. Judges nothing; gates do."""
    layout = _with_interpreter(layout, project)
    model, model_mounts = _model(layout, project)
    user_mounts = _user_mounts(layout, project)
    speculation, notes = rules.decide_speculation(layout, facts, table)
    speculation, draft_mounts = _draft(layout, speculation, project)
    model_mounts = (*model_mounts, *(mount for mount in draft_mounts if mount.target != model.mount))
    overlays = _overlays(layout, project)
    partition = layout.parallel.layer_partition if layout.parallel.pipeline > 1 else None
    deployment = Deployment(
        name=layout.name,
        status=layout.status,
        missing_proof=layout.missing_proof,
        runtime=layout.runtime,
        project_root=str(project.root),
        model=model,
        engine=layout.engine,
        parallel=layout.parallel,
        hardware=layout.hardware,
        container=layout.container,
        partition=_canonical(partition),
        speculation=speculation,
        engine_args=(),
        env=(*_without(_env(layout, partition), overlays.env), *overlays.env),
        secrets=layout.secrets,
        mounts=(*_uncovered(model_mounts, user_mounts), *user_mounts, *overlays.mounts),
        patches=overlays.patches,
        unknown_patches=overlays.unknown,
        overlay=overlays.plan,
        waivers=layout.allow,
        probes=layout.probes,
        wait_timeout_s=layout.wait_timeout_s,
        notes=notes,
        image_origin=layout.origin("engine", "image") or Origin("layout", layout.file),
        container_origins=_container_origins(layout),
        capacity=layout.capacity,
        nodes=layout.nodes,
    )
    return replace(deployment, engine_args=_arguments(layout, deployment))


def _arguments(layout: Layout, deployment: Deployment) -> tuple[Argument, ...]:
    """Model, address and topology first, then the layout's own flags, then speculation: a stable order."""
    container, parallel = layout.container, layout.parallel
    if layout.engine.command is not None:
        origin = layout.origin("engine", "command") or Origin("layout", layout.file)
        return (Argument(layout.engine.command, origin),) if layout.engine.command else ()
    publish = layout.origin("container", "publish") or Origin("rule", "publish-loopback")
    host, port = ("0.0.0.0", container.container_port)
    if layout.runtime == "local":
        host, port = container.publish_host, container.publish_port
    default = Origin("rule", "single-rank")
    arguments = [
        Argument(
            (*(("--model",) if layout.engine.model_flag else ()), deployment.model.engine_path),
            layout.origin("model", "path") or default,
        ),
        Argument(("--host", host), publish),
        Argument(("--port", str(port)), publish),
        Argument(("--tensor-parallel-size", str(parallel.tensor)), layout.origin("parallel", "tensor") or default),
    ]
    if layout.model.revision is not None:
        origin = layout.origin("model", "revision") or default
        arguments.insert(1, Argument(("--revision", layout.model.revision), origin))
    if parallel.pipeline > 1:
        origin = layout.origin("parallel", "pipeline") or default
        arguments.append(Argument(("--pipeline-parallel-size", str(parallel.pipeline)), origin))
    all_reduce = rules.custom_all_reduce_argument(layout)
    if all_reduce is not None:
        arguments.append(all_reduce)
    arguments += serve_arguments(layout)
    if deployment.overlay is not None and compile_cache.needs_own_cache(deployment.patches):
        arguments = [*compile_cache.with_cache_key(arguments, deployment.overlay.key)]
    arguments = [*with_weight_tracking(arguments, deployment.patches)]
    speculation = deployment.speculation
    if speculation.active:
        arguments.append(Argument(("--speculative-config", to_json(speculation.config())), speculation.origin))
    return tuple(arguments)


def _env(layout: Layout, partition: str | None) -> tuple[EnvPair, ...]:
    pairs = [
        EnvPair(name, layout.raw("env", name) or "", layout.origin("env", name) or Origin("layout", layout.file))
        for name, value in layout.env.items()
        if value is not None and not (name == rules.RUNNER_ENV and layout.v2_runner is not None)
    ]
    if partition is not None:
        origin = layout.origin("parallel", "layer_partition") or Origin("layout", layout.file)
        pairs.append(EnvPair(rules.PARTITION_ENV, _canonical(partition) or "", origin))
    pairs += [pair for pair in (rules.runner_env(layout), rules.ready_timeout_env(layout)) if pair is not None]
    return tuple(pairs)


def _container_origins(layout: Layout) -> dict[str, Origin]:
    found = {
        path[1]: layout.origin(*path) for path in layout.document.marks if len(path) == 2 and path[0] == "container"
    }
    return {key: origin for key, origin in found.items() if origin is not None}


def _without(pairs: Sequence[EnvPair], replaced: Sequence[EnvPair]) -> tuple[EnvPair, ...]:
    names = {pair.name for pair in replaced}
    return tuple(pair for pair in pairs if pair.name not in names)


def _canonical(partition: str | None) -> str | None:
    return None if partition is None else ",".join(part.strip(" \t") for part in partition.split(","))


def _with_interpreter(layout: Layout, project: Project) -> Layout:
    if layout.runtime != "local":
        return layout
    python = layout.engine.python
    absolute = os.path.abspath(project.root / os.path.expanduser(python)) if python else sys.executable
    return replace(layout, engine=replace(layout.engine, python=absolute))


def _model(layout: Layout, project: Project) -> tuple[Model, tuple[Mount, ...]]:
    """The model with its absolute host path and the path the engine sees, and the mount that joins the two."""
    host_path = locate_model(layout.model.path, project)
    if host_path is None:
        return layout.model, ()
    source = str(host_path)
    if layout.runtime == "local":
        return replace(layout.model, path=source, mount=None), ()
    absolute = layout.model.path.startswith("/")
    target = layout.model.mount or (source if absolute else f"/models/{host_path.name}")
    origin = layout.origin("model", "path") or Origin("layout", layout.file)
    return replace(layout.model, path=source, mount=target), (Mount(source, target, True, "model", origin),)


def _draft(layout: Layout, speculation: Speculation, project: Project) -> tuple[Speculation, tuple[Mount, ...]]:
    """The draft model where the engine sees it, and its mount: the rules of `model.path`, at the same absolute path."""
    path = speculation.model
    # The model of a custom_class is the name of a Python class.
    if not speculation.active or path is None or speculation.method == "custom_class":
        return speculation, ()
    host_path = locate_model(path, project)
    if host_path is None:
        return speculation, ()
    source = str(host_path)
    if layout.runtime == "local":
        return replace(speculation, model=source), ()
    target = source if path.startswith("/") else f"/models/{host_path.name}"
    origin = layout.origin("speculative", "model") or Origin("layout", layout.file)
    return replace(speculation, model=target), (Mount(source, target, True, "model", origin),)


def _uncovered(models: Sequence[Mount], mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """Model mounts that no mount of the layout already brings to the same place as part of a larger folder."""

    def covers(outer: Mount, inner: Mount) -> bool:
        below = inner.source.removeprefix(outer.source.rstrip("/") + "/")
        return not outer.volume and below != inner.source and inner.target == f"{outer.target.rstrip('/')}/{below}"

    return tuple(model for model in models if not any(covers(mount, model) for mount in mounts))


def _user_mounts(layout: Layout, project: Project) -> tuple[Mount, ...]:
    mounts = []
    for mount in layout.container.mounts:
        absolute = os.path.abspath(project.root / os.path.expanduser(mount.source))
        source = mount.source if mount.volume else absolute
        origin = layout.origin("container", "mounts", str(mount.index)) or Origin("layout", layout.file)
        mounts.append(Mount(source, mount.target, mount.readonly, "user", origin, volume=mount.volume))
    return tuple(mounts)


def _overlays(layout: Layout, project: Project) -> _Overlays:
    roots = project.patch_roots()
    found = [(name, find_patch(name, roots)) for name in layout.patches]
    unknown = tuple(name for name, patch in found if patch is None)
    patches = tuple(patch for _, patch in found if patch is not None)
    usable = tuple(patch for patch in patches if patch.supports(layout.engine.vllm))
    if not usable:
        return _Overlays(patches, unknown, None, (), ())
    directory = project.root / "overlays" / engine_key(layout, project) / series_key(usable, layout.engine.vllm)
    env = compile_cache.cache_env(layout, usable, OverlayPlan(str(directory), None).key)
    if layout.runtime == "local":
        plan = OverlayPlan(str(directory), None)
        # A PYTHONPATH of the layout stays, behind the patched package.
        path = ":".join(part for part in (plan.farm, layout.raw("env", "PYTHONPATH")) if part)
        farm = EnvPair("PYTHONPATH", path, Origin("rule", "overlay-link-farm"))
        return _Overlays(patches, unknown, plan, (), (farm, *env))
    root = layout.engine.package_root or OFFICIAL_PACKAGE_ROOT
    mounts = _overlay_mounts(usable, layout.engine.vllm, directory, root)
    return _Overlays(patches, unknown, OverlayPlan(str(directory), root), mounts, env)


def _overlay_mounts(patches: Sequence[Patch], version: str, directory: Path, root: str) -> tuple[Mount, ...]:
    owners = ", ".join(patch.id for patch in patches)
    return tuple(
        Mount(
            str(directory / "vllm" / target.relative),
            f"{root}/{target.relative}",
            True,
            "overlay",
            Origin("patch", owners),
            target.adds,
        )
        for target in targets(patches, version)
    )


def engine_key(layout: Layout, project: Project) -> str:
    """A folder name for the engine whose files are patched: its version and 8 digits of what identifies it."""
    engine = layout.engine
    if layout.runtime == "local":
        identity = "local " + str(engine.python).replace(str(project.root) + "/", "")
    else:
        identity = f"image {engine.image}@{engine.digest or ''}"
    return f"{engine.vllm}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def rule_warnings(deployment: Deployment) -> tuple[RuleNote, ...]:
    """The rules that acted in a way a reader should see."""
    return tuple(note for note in deployment.notes if note.warn)
