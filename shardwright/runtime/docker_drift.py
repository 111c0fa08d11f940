"""A running container, and the one that a deployment would start now, in the same plain form."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from shardwright.connect.docker_sdk import ContainerFacts, DockerEngine
from shardwright.connect.trees import PACKAGE
from shardwright.errors import DeployError, ExitCode
from shardwright.overlay.lock import read_lock
from shardwright.runtime import file_states
from shardwright.runtime.description import Description, FileState, MountedFrom, value_digest
from shardwright.runtime.docker_options import inspected_options
from shardwright.runtime.docker_preflight import pinned_reference
from shardwright.runtime.docker_wanted import describe_run, read_run

if TYPE_CHECKING:
    from shardwright.render.command import RenderedCommand
    from shardwright.resolve.deployment import Deployment

# The docker command line adds the proxies of its own settings to each container that it makes.
_PROXIES = frozenset(f"{kind}_proxy" for kind in ("http", "https", "ftp", "no", "all"))
# This storage driver copies the image's files for each container, so that all of them look changed until it starts.
_COPYING_DRIVER = "vfs"


def wanted_container(engine: DockerEngine, deployment: Deployment, command: RenderedCommand) -> Description:
    """The container that the rendered command would make now, of the image that its reference now names."""
    run = read_run(command.argv)
    image = engine.image(pinned_reference(deployment))
    root = deployment.engine.package_root
    folders = (str(PurePosixPath(root).parent),) if root is not None else ()
    return replace(describe_run(run, image, _host_files(deployment)), code_folders=folders)


def running_container(engine: DockerEngine, found: ContainerFacts, wanted: Description) -> Description:
    """The running container, with the files that `wanted` has and the code that was changed in its own layer."""
    attrs = engine.inspect(found.id)
    mounts = {str(mount["Destination"]): mount for mount in attrs.get("Mounts") or ()}
    started_at = found.started_at or 0.0
    request = {
        "paths": sorted(wanted.files),
        "folders": list(wanted.code_folders),
        "since": started_at if attrs.get("Driver") == _COPYING_DRIVER else found.created_at,
    }
    seen = _look_inside(engine, found, request)
    changed = {path: state for path, state in seen["changed"].items() if not _is_below(path, mounts)}
    env = dict(pair.partition("=")[::2] for pair in attrs["Config"].get("Env") or ())
    return Description(
        image=str(attrs["Image"]),
        argv=(str(attrs["Path"]), *map(str, attrs.get("Args") or ())),
        env={
            name: value_digest(value)
            for name, value in env.items()
            if name in wanted.env or name.lower() not in _PROXIES
        },
        mounts={target: _mounted(mount) for target, mount in mounts.items() if not _is_anonymous(mount, wanted)},
        options=inspected_options(attrs),
        files={path: FileState(*state) for path, state in {**changed, **seen["files"]}.items()},
        started_at=started_at,
    )


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _host_files(deployment: Deployment) -> dict[str, FileState]:
    """What stands at the sources of mounts: the files of overlays one by one, other folders as a whole."""
    overlay = deployment.overlay
    locked = _locked(overlay.directory) if overlay else {}
    found: dict[str, FileState] = {}
    for mount in deployment.mounts:
        source = Path(mount.source)
        if mount.volume:
            continue
        files = sorted(source.rglob("*")) if mount.purpose == "overlay" and source.is_dir() else [source]
        for file in files:
            if file.is_dir() and file != source:
                continue
            target = mount.target if file == source else f"{mount.target}/{file.relative_to(source)}"
            content, inode, written_at, changed_at = file_states.file_state(str(file))
            is_locked = content is not None and locked.get(str(file)) == content
            found[os.path.normpath(target)] = FileState(content, inode, written_at, changed_at, is_locked)
    return found


def _locked(directory: str) -> dict[str, str]:
    try:
        lock = read_lock(Path(directory))
    except DeployError:
        return {}
    root = Path(directory) / PACKAGE
    return {str(root / relative): content for relative, content in lock.results().items()} if lock else {}


def _look_inside(engine: DockerEngine, found: ContainerFacts, request: Mapping[str, Any]) -> dict[str, Any]:
    script = Path(file_states.__file__).read_text(encoding="utf-8")
    answered = engine.execute(found.id, ["python3", "-I", "-c", script, json.dumps(request)])
    output = answered.stdout.decode(errors="replace")
    for line in reversed(output.splitlines()):
        if line.startswith(file_states.MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(file_states.MARK))
            return answer
    raise DeployError(
        f"the files inside {found.name} cannot be read (status {answered.status})",
        why=" ".join((answered.stderr or output).split())[-200:],
        fix=f"docker exec {found.name} python3 -V",
        code=ExitCode.INCONCLUSIVE,
    )


def _mounted(mount: Mapping[str, Any]) -> MountedFrom:
    kind = str(mount.get("Type"))
    source = str(mount.get("Name") if kind == "volume" else mount.get("Source"))
    return MountedFrom(kind, os.path.normpath(source) if kind == "bind" else source, not mount.get("RW", True))


def _is_anonymous(mount: Mapping[str, Any], wanted: Description) -> bool:
    """A volume that Docker made by itself, because the image declares one there."""
    name = str(mount.get("Name") or "")
    unnamed = mount.get("Type") == "volume" and len(name) == 64 and set(name) <= set("0123456789abcdef")
    return unnamed and str(mount["Destination"]) not in wanted.mounts
