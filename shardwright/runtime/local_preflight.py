"""What a local start needs from this host, checked before anything is created; one clear line for each."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from shardwright.connect.processes import listen_error, port_holder
from shardwright.connect.trees import InstalledTree
from shardwright.errors import DeployError
from shardwright.facts.versions import parse_version
from shardwright.resolve.deployment import Deployment


def check(deployment: Deployment) -> None:
    """Raise DeployError for the first thing that would keep this deployment from starting here."""
    check_paths(deployment)
    check_port(deployment.container.publish_host, deployment.container.publish_port)
    check_engine(deployment)


def check_engine(deployment: Deployment) -> None:
    """The interpreter exists, has the vllm package, and that is of the layout's version. vLLM is not imported."""
    python = interpreter(deployment)
    if shutil.which(python) is None:
        raise DeployError(
            f"{python} is not an executable on this host",
            why="the local runtime starts vLLM from a Python environment",
            fix="set engine.python in the layout to the interpreter of an environment with vLLM",
        )
    found, wanted = InstalledTree(python).vllm_version, deployment.engine.vllm
    if parse_version(found) != parse_version(wanted):
        raise DeployError(
            f"{python} has vLLM {found}, and the layout is for {wanted}",
            why="flags, defaults and patches belong to one version",
            fix=f"install vLLM {wanted} there, or name another environment in engine.python",
        )


def interpreter(deployment: Deployment) -> str:
    return deployment.engine.python or "python3"


def check_port(host: str, port: int) -> None:
    """Nobody listens on the port; who does is named where this user may see it."""
    error = listen_error(host, port)
    if error is None:
        return
    if error.errno != errno.EADDRINUSE:
        raise DeployError(
            f"this host cannot listen on {host}:{port}: {error.strerror}", fix="correct container.publish in the layout"
        )
    holder = port_holder(port)
    who = f"pid {holder.pid} ({holder.command})" if holder else "a process that this user may not see"
    raise DeployError(
        f"port {port} is in use by {who}",
        why="the engine would load its weights first and fail then",
        fix=f"stop it (deploy status shows ours), or choose another port: PORT={port + 1} deploy start",
    )


def check_paths(deployment: Deployment) -> None:
    """The model's folder, the built overlays and the sources of mounts are there."""
    model = deployment.model.path
    if model.startswith("/"):
        if not Path(model).exists():
            raise DeployError(f"there is no model at {model}", fix="correct model.path in the layout")
        if not os.access(model, os.R_OK):
            raise DeployError(f"this user may not read the model at {model}", fix=f"ls -ld {model}")
    if deployment.overlay is not None and not Path(deployment.overlay.directory).is_dir():
        raise DeployError(
            f"the overlays of {deployment.name} are not built",
            why="without them the engine would run unpatched",
            fix=f"deploy patch build {deployment.name}",
        )
    for mount in deployment.mounts:
        if not Path(mount.source).exists():
            raise DeployError(f"mount source {mount.source} does not exist", fix=f"make it, or correct {mount.origin}")
