"""A link farm for the local runtime: the installed package by symlinks, with only the patched files real.

Put first on PYTHONPATH, it serves the same overlay that a container would have mounted, without root or Docker.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from shardwright.connect.atomic import FILE_MODE, staged_directory
from shardwright.connect.trees import PACKAGE
from shardwright.errors import DeployError
from shardwright.overlay.edits import ADDITIVE_PACKAGE
from shardwright.overlay.lock import Lock, read_lock

_BYTECODE = "__pycache__"


def build_farm(overlay_directory: Path, installed_package: Path) -> Path:
    """The folder to put first on PYTHONPATH, made beside `overlay_directory` when it is not there yet.

    Its name is keyed by the lock, the installed package and that package's listing, so a farm in use is never rebuilt
    for other contents. `installed_package` is the folder of the vllm package. DeployError when the overlay has no
    lock, or was built from files that are not the installed ones.
    """
    lock = read_lock(overlay_directory)
    if lock is None:
        raise DeployError(
            f"{overlay_directory} holds no overlay", why="there is nothing to serve from it", fix="deploy patch build"
        )
    package = installed_package.absolute()
    _refuse_other_base(lock, package)
    links = _links(lock, package)
    farm = overlay_directory.with_name(f"{overlay_directory.name}.farm-{_key(lock, package, links)}")
    if _is_intact(farm / PACKAGE, lock, package, links):
        return farm
    with staged_directory(farm) as staged:
        for relative in lock.results():
            copy = staged / PACKAGE / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(overlay_directory / PACKAGE / relative, copy)
            copy.chmod(FILE_MODE)
        for relative in links:
            (staged / PACKAGE / relative).symlink_to(package / relative)
        if not _is_intact(staged / PACKAGE, lock, package, links):
            raise DeployError(
                f"{overlay_directory} is not what was built", why="its files changed", fix="deploy patch build"
            )
    return farm


def _refuse_other_base(lock: Lock, package: Path) -> None:
    for file in lock.files:
        installed = package / file.relative
        if not installed.is_file() or _sha256(installed) != file.base_sha256:
            raise DeployError(
                f"IMAGE_CHANGED {file.relative}: the overlay was built from another file than {package} has",
                why="a patched copy of one build inside another build mixes two engines",
                fix="deploy patch build, from the engine that will serve",
            )
    if (package / ADDITIVE_PACKAGE).exists():
        raise DeployError(
            f"RESIDUE {package / ADDITIVE_PACKAGE} is there: the installed package is not pristine",
            fix="reinstall vLLM in that environment",
        )


def _links(lock: Lock, package: Path) -> tuple[str, ...]:
    """What the farm links: everything in the folders that lead to a patched file, but for those files and folders."""
    real = {".", *(parent.as_posix() for file in lock.files for parent in Path(file.relative).parents)}
    skipped = {*real, *(file.relative for file in lock.files)}
    entries = ((Path(folder) / entry.name).as_posix() for folder in real for entry in (package / folder).iterdir())
    return tuple(sorted(name for name in entries if name not in skipped and Path(name).name != _BYTECODE))


def _key(lock: Lock, package: Path, links: Sequence[str]) -> str:
    return hashlib.sha256("\n".join([lock.lock_sha256, str(package), *links]).encode()).hexdigest()[:12]


def _is_intact(root: Path, lock: Lock, package: Path, links: Sequence[str]) -> bool:
    copies = all(
        (root / relative).is_file() and not (root / relative).is_symlink() and _sha256(root / relative) == sha256
        for relative, sha256 in lock.results().items()
    )
    return copies and all(
        (root / relative).is_symlink() and (root / relative).readlink() == package / relative for relative in links
    )


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
