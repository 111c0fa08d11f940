"""Build the overlay of a deployment from its engine's own files, and prove before a start that it still is that."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from shardwright.connect.trees import ImageTree, InstalledTree, SourceTree, WheelTree
from shardwright.connect.wheels import wheel_file
from shardwright.errors import DeployError
from shardwright.overlay.bases import keep_bases
from shardwright.overlay.build import build_overlay
from shardwright.overlay.farm import build_farm
from shardwright.overlay.lock import Lock, read_lock, verify_overlay
from shardwright.resolve.deployment import Deployment, OverlayPlan


class BuiltOverlay(Struct, frozen=True):
    """What was built, and where; `farm` is the folder for PYTHONPATH of a local engine."""

    directory: str
    lock: Lock
    farm: str | None


def engine_tree(deployment: Deployment, wheel: str | None = None) -> SourceTree:
    """The pristine files of the deployment's engine: its image or installed package, or a wheel that stands in."""
    if wheel is not None:
        return WheelTree(wheel_file(wheel, cache_of(Path(deployment.project_root))))
    if deployment.runtime == "local":
        return InstalledTree(str(deployment.engine.python))
    if deployment.engine.image is None:
        raise DeployError("the layout names no engine.image", fix="set engine.image, or use --wheel FILE")
    return ImageTree(deployment.engine.image, deployment.engine.digest)


def cache_of(project_root: Path) -> Path:
    """Where downloaded engine files are kept."""
    return project_root / ".deploy" / "cache"


def build_for(deployment: Deployment, wheel: str | None = None) -> BuiltOverlay | None:
    """Build the overlay that the deployment mounts; None when it has no patches."""
    _refuse_unusable(deployment)
    if deployment.overlay is None:
        return None
    tree = engine_tree(deployment, wheel)
    _refuse_other_root(deployment, tree, wheel)
    directory = Path(deployment.overlay.directory)
    lock = build_overlay(deployment.patches, deployment.engine.vllm, tree, directory)
    keep_bases(lock, tree, Path(deployment.project_root) / "overlays")
    if deployment.runtime != "local" or wheel is not None:
        return BuiltOverlay(str(directory), lock, None)
    link = Path(deployment.overlay.farm)
    _point(link, build_farm(directory, Path(tree.root)))
    return BuiltOverlay(str(directory), lock, str(link))


def verify_for(deployment: Deployment, identity: str | None) -> None:
    """Refuse a start that the overlay's lock does not cover. `identity` is that of the engine which will run."""
    _refuse_unusable(deployment)
    overlay = deployment.overlay
    if overlay is None:
        return
    problems = verify_overlay(Path(overlay.directory), deployment.patches, deployment.engine.vllm, identity)
    if not problems and deployment.runtime == "local":
        problems = _farm_problems(overlay)
    if problems:
        raise DeployError(
            f"the overlay of {deployment.name} is not ready: {problems[0]}",
            why="; ".join(problems[1:]) or "starting now would serve the unpatched engine, or one that nobody checked",
            fix=f"deploy patch build {deployment.name}",
        )


def _refuse_unusable(deployment: Deployment) -> None:
    if deployment.unknown_patches:
        raise DeployError(f"the patch {deployment.unknown_patches[0]} does not exist here", fix="deploy patch list")
    for patch in deployment.patches:
        patch.edits_for(deployment.engine.vllm)


def _refuse_other_root(deployment: Deployment, tree: SourceTree, wheel: str | None) -> None:
    declared = deployment.overlay.package_root if deployment.overlay else None
    if declared is None or wheel is not None or tree.root == declared:
        return
    raise DeployError(
        f"the image keeps vllm in {tree.root}, but the mounts would go to {declared}",
        why="files mounted beside the package are never imported: the engine would run unpatched",
        fix=f"set engine.package_root: {tree.root}",
    )


def _farm_problems(overlay: OverlayPlan) -> list[str]:
    link, lock = Path(overlay.farm), read_lock(Path(overlay.directory))
    if lock is None or not link.is_symlink():
        return ["NO_FARM the link farm for the local engine was not built"]
    current = build_farm(Path(overlay.directory), Path(lock.root))
    return [] if link.resolve() == current.resolve() else ["STALE_FARM the link farm belongs to other files"]


def _point(link: Path, target: Path) -> None:
    """Make `link` point at its neighbour `target` in one step."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.name)
    temporary.replace(link)
