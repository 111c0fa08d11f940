"""The docker runtime: the rendered command line is executed as it is, all else is read from the Docker engine.

Only containers that carry the layout's label are ours; nothing here stops, renames or removes any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.connect.docker_cli import explain, run_docker
from shardwright.connect.docker_sdk import ContainerFacts, DockerEngine
from shardwright.errors import DeployError
from shardwright.render.command import LABEL_PREFIX, SECRETS_TARGET
from shardwright.runtime.base import EngineState, EngineStatus
from shardwright.runtime.description import Description
from shardwright.runtime.docker_drift import running_container, wanted_container
from shardwright.runtime.docker_preflight import (
    check_gpus,
    check_image,
    check_mount_sources,
    check_mount_targets,
    check_port,
)
from shardwright.runtime.secret_file import discard_secrets, write_secrets

if TYPE_CHECKING:
    from shardwright.render.command import RenderedCommand
    from shardwright.resolve.deployment import Deployment

LAYOUT_LABEL = f"{LABEL_PREFIX}.layout"
PROJECT_LABEL = f"{LABEL_PREFIX}.project"

_STATUSES: Mapping[str, EngineStatus] = {
    "created": "created",
    "running": "running",
    "paused": "running",
    "restarting": "restarting",
    "removing": "dead",
    "exited": "exited",
    "dead": "dead",
}
_OVER = ("exited", "dead")


class DockerRuntime:
    """Engines as containers of the local Docker engine. Callers hold the project's lock while they start or stop.

    `project`: only containers with this value of the project label count as ours; None admits those of any project.
    """

    kind = "docker"

    def __init__(self, project: str | None = None) -> None:
        self._project = project

    @cached_property
    def _engine(self) -> DockerEngine:
        return DockerEngine()

    def preflight(self, deployment: Deployment) -> None:
        """Refuse, with one DeployError, what could not start. Creates nothing that outlives the call."""
        image = check_image(self._engine, deployment)
        self._predecessor(deployment.instance_name, deployment.name)
        check_mount_sources(deployment)
        check_mount_targets(self._engine, image, deployment)
        check_port(self._engine, deployment)
        check_gpus(self._engine, image, deployment)

    def engine_identity(self, deployment: Deployment) -> str:
        """The id of the image that the deployment's reference and digest name."""
        return check_image(self._engine, deployment).id

    def expect(self, deployment: Deployment, command: RenderedCommand) -> Description:
        """The container that the rendered `docker run` would make now."""
        return wanted_container(self._engine, deployment, command)

    def describe(self, name: str, wanted: Description, secrets: Collection[str] = ()) -> Description:
        """The running container of ours; DeployError when there is none. Secrets reach it as a file."""
        found = self._find(name)
        if found is None:
            raise DeployError(f"there is no container {name} of ours", fix="deploy status")
        return running_container(self._engine, found, wanted)

    def start(self, deployment: Deployment, command: RenderedCommand, secrets: Mapping[str, str]) -> EngineState:
        """Execute the rendered `docker run`. On any failure the world is as it was before."""
        name = deployment.instance_name
        predecessor = self._free_name(name, deployment.name)
        secrets_file = Path(command.secrets_file) if command.secrets_file else None
        result = None
        try:
            if secrets_file:
                write_secrets(secrets_file, secrets)
            result = run_docker(command.argv)
            if result.returncode != 0:
                # Docker prints the id as soon as the container exists, also when it then fails to start.
                if result.stdout:
                    run_docker(["docker", "rm", "--force", "--volumes", result.stdout.split()[-1]])
                raise explain(result.stderr)
        finally:
            started = result is not None and result.returncode == 0
            # A mounted file lives on in the container, but a restart mounts it anew.
            if secrets_file and not (started and deployment.container.restart != "no"):
                discard_secrets(secrets_file)
            if predecessor and not started:
                self._change("rename", predecessor.id, name)
        if result.interrupted:
            raise KeyboardInterrupt
        return self.state(name)

    def state(self, name: str) -> EngineState:
        """The engine of that name; a foreign container of the name counts as absent."""
        found = self._find(name)
        return self._state(found) if found else EngineState(name, "", "absent", None, 0, None, "")

    def instances(self, layout: str | None = None) -> tuple[EngineState, ...]:
        """Our containers in any state, newest first."""
        return tuple(self._state(found) for found in self._ours(layout))

    def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Lines of both outputs. Following ends when the container stops, also before a restart."""
        found = self._find(name)
        if found is None:
            raise DeployError(f"there is no container {name} of ours", fix="deploy status")
        return self._engine.logs(found.id, follow=follow, tail=tail)

    def stop(self, name: str, timeout_s: int) -> EngineState:
        """SIGTERM, after `timeout_s` SIGKILL; the stopped container stays, with its logs. One that never ran goes."""
        found = self._engine.container(name)
        if found is None:
            return self.state(name)
        if not self._is_ours(found):
            raise _foreign(name)
        if found.status == "created":
            # It never ran: a start was cut off between the two steps of `docker run`.
            self._remove(found)
            return self.state(name)
        if found.status not in _OVER:
            self._change("stop", "-t", str(timeout_s), found.id)
        self._discard_secrets_of(found)
        return self.state(name)

    def resume(self, name: str, secrets: Mapping[str, str]) -> EngineState:
        """`docker start` of a stopped container of ours, with its secrets file in place while it starts."""
        found = self._find(name)
        if found is None or found.status not in _OVER:
            raise DeployError(
                f"the container {name} cannot be started again ({found.status if found else 'absent'})",
                fix="deploy status",
            )
        source = found.mounts.get(SECRETS_TARGET)
        if source is not None:
            write_secrets(Path(source), secrets)
        result = None
        try:
            result = run_docker(["docker", "start", found.id])
        finally:
            if source is not None and not (result and result.returncode == 0 and found.restart_policy != "no"):
                discard_secrets(Path(source))
        if result.returncode != 0:
            raise explain(result.stderr)
        if result.interrupted:
            raise KeyboardInterrupt
        return self.state(name)

    def remove_old(self, layout: str, keep: int, protected: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Remove stopped containers of the layout, with their logs, but for the `keep` newest and the `protected`."""
        stopped = [found for found in self._ours(layout) if found.status in _OVER]
        old = [found for found in stopped[keep:] if found.name not in protected]
        for found in old:
            self._remove(found)
        return tuple(found.name for found in old)

    def _predecessor(self, name: str, layout: str) -> ContainerFacts | None:
        """The container of ours that holds the name and is not in use; DeployError when the name cannot be had."""
        found = self._engine.container(name)
        if found is None or (self._is_ours(found) and found.status in (*_OVER, "created")):
            return found
        if self._is_ours(found):
            raise DeployError(
                f"{name} is already {found.status}",
                why="its name stands for exactly this deployment, so a second one would be the same",
                fix=f"deploy status {layout}, or first: deploy stop {layout}",
            )
        raise _foreign(name)

    def _free_name(self, name: str, layout: str) -> ContainerFacts | None:
        """Move a stopped container of ours out of the way, logs and all; what it was before."""
        predecessor = self._predecessor(name, layout)
        if predecessor is None:
            return None
        if predecessor.status == "created":
            self._remove(predecessor)
            return None
        self._discard_secrets_of(predecessor)
        self._change("rename", predecessor.id, f"{name}-{predecessor.id[:12]}")
        return predecessor

    def _find(self, name: str) -> ContainerFacts | None:
        found = self._engine.container(name)
        return found if found and self._is_ours(found) else None

    def _ours(self, layout: str | None) -> tuple[ContainerFacts, ...]:
        labels: dict[str, str | None] = {LAYOUT_LABEL: layout}
        if self._project is not None:
            labels[PROJECT_LABEL] = self._project
        return self._engine.containers(labels)

    def _is_ours(self, found: ContainerFacts) -> bool:
        if LAYOUT_LABEL not in found.labels:
            return False
        return self._project is None or found.labels.get(PROJECT_LABEL) == self._project

    def _state(self, found: ContainerFacts) -> EngineState:
        status = _STATUSES.get(found.status, "dead")
        return EngineState(
            name=found.name,
            layout=found.labels.get(LAYOUT_LABEL, ""),
            status=status,
            exit_code=found.exit_code if status in ("restarting", *_OVER) else None,
            restart_count=found.restart_count,
            started_at=found.started_at,
            identifier=found.id,
        )

    def _remove(self, found: ContainerFacts) -> None:
        self._discard_secrets_of(found)
        self._change("rm", "--volumes", found.id)

    def _discard_secrets_of(self, found: ContainerFacts) -> None:
        """Remove the secrets file of a stopped container, unless one that may still restart mounts the same file."""
        source = found.mounts.get(SECRETS_TARGET)
        if source is None:
            return
        others = (other for other in self._ours(None) if other.id != found.id and other.status not in _OVER)
        if all(other.mounts.get(SECRETS_TARGET) != source for other in others):
            discard_secrets(Path(source))

    def _change(self, *arguments: str) -> None:
        result = run_docker(["docker", *arguments])
        if result.returncode != 0 and "No such container" not in result.stderr:
            raise explain(result.stderr)
        if result.interrupted:
            raise KeyboardInterrupt


def _foreign(name: str) -> DeployError:
    return DeployError(
        f"the container name {name} is taken by a container that deploy did not start",
        why="containers of others are never touched",
        fix=f"docker rename {name} ANOTHER-NAME",
    )
