"""What the Docker engine knows, read through its API: images, containers, logs and files. Nothing here starts or stops.

The docker package is imported by the first read, since it costs more than a whole `deploy cmd`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shardwright.connect.docker_cli import explain, run_docker
from shardwright.errors import DeployError


@dataclass(frozen=True)
class ImageFacts:
    """One local image. `digests` are the published ones; an image that was never pulled or pushed has none.

    `config` is the image's own configuration in Docker's words: Env, Entrypoint, Cmd, User, Healthcheck.
    """

    id: str
    digests: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ContainerFacts:
    """One container as inspected: `status` in Docker's words, times in unix seconds, `mounts` as target to source."""

    id: str
    name: str
    labels: Mapping[str, str]
    status: str
    exit_code: int
    restart_count: int
    created_at: float
    started_at: float | None
    mounts: Mapping[str, str]
    restart_policy: str = "no"


@dataclass(frozen=True)
class Executed:
    """What a program in a container left. A program that is not there leaves status 126 or 127, its name in stdout."""

    status: int
    stdout: bytes
    stderr: str


@dataclass(frozen=True)
class EngineInfo:
    """One Docker engine: its OCI runtimes, the CDI names of its devices, and the folder of its images."""

    runtimes: frozenset[str]
    devices: tuple[str, ...]
    root: str


@dataclass(frozen=True)
class PathFacts:
    """What stands at a path of an image."""

    is_directory: bool


class DockerEngine:
    """Reads of the engine that the docker command line talks to. Raises DeployError when it does not answer."""

    def __init__(self) -> None:
        self._client = docker_client()

    def image(self, reference: str) -> ImageFacts | None:
        """The local image of that name, digest or id."""
        from docker.errors import ImageNotFound

        with in_clear_words():
            try:
                image = self._client.images.get(reference)
            except ImageNotFound:
                return None
        digests = (str(name).rpartition("@")[2] for name in image.attrs.get("RepoDigests") or ())
        return ImageFacts(str(image.id), tuple(digests), image.attrs.get("Config") or {})

    def info(self) -> EngineInfo:
        """What the engine says of itself."""
        with in_clear_words():
            info = self._client.info()
        devices = (str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ())
        return EngineInfo(frozenset(info.get("Runtimes") or ()), tuple(devices), str(info.get("DockerRootDir") or "/"))

    def container(self, name: str) -> ContainerFacts | None:
        """The container of exactly that name or full id, in any state."""
        found = self._inspect(name)
        return found if found is not None and name in (found.name, found.id) else None

    def containers(self, labels: Mapping[str, str | None]) -> tuple[ContainerFacts, ...]:
        """Containers in any state that carry all labels, newest first; a value of None admits any."""
        wanted = [name if value is None else f"{name}={value}" for name, value in labels.items()]
        with in_clear_words():
            rows = self._client.api.containers(all=True, filters={"label": wanted})
        found = (self._inspect(row["Id"]) for row in rows)
        return tuple(sorted((one for one in found if one), key=lambda one: one.created_at, reverse=True))

    def publisher(self, port: int) -> str | None:
        """The name of the running container that publishes this host port."""
        with in_clear_words():
            rows = self._client.api.containers()
        for row in rows:
            if any(binding.get("PublicPort") == port for binding in row.get("Ports") or ()):
                return str(row["Names"][0]).lstrip("/")
        return None

    def inspect(self, container_id: str) -> Mapping[str, Any]:
        """All that Docker says of a container, in its own words."""
        with in_clear_words():
            attrs: Mapping[str, Any] = self._client.api.inspect_container(container_id)
        return attrs

    def execute(self, container_id: str, argv: Sequence[str]) -> Executed:
        """Run a program to its end in a running container, as its root so that it may read all."""
        with in_clear_words():
            made = self._client.api.exec_create(container_id, list(argv), user="0")
            stdout, stderr = self._client.api.exec_start(made["Id"], demux=True)
            status = self._client.api.exec_inspect(made["Id"])["ExitCode"]
        return Executed(int(status or 0), stdout or b"", (stderr or b"").decode(errors="replace"))

    def logs(self, container_id: str, *, follow: bool, tail: int | None) -> Iterator[str]:
        """Lines of both outputs in the order in which Docker recorded them."""
        with in_clear_words():
            chunks = self._client.containers.get(container_id).logs(
                stream=True, follow=follow, tail="all" if tail is None else tail
            )
            rest = b""
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.rstrip(b"\r").decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")

    @contextmanager
    def image_files(self, image: str) -> Iterator[ImageFiles]:
        """The files of an image, through a container that is created, never started, and removed at the end."""
        with in_clear_words():
            created = self._client.api.create_container(image, entrypoint=["true"], network_disabled=True)["Id"]
        try:
            yield ImageFiles(self._client, created)
        finally:
            with in_clear_words():
                self._client.api.remove_container(created, v=True, force=True)

    def _inspect(self, name: str) -> ContainerFacts | None:
        from docker.errors import NotFound

        with in_clear_words():
            try:
                return _container_facts(self._client.api.inspect_container(name))
            except NotFound:
                return None


class ImageFiles:
    """Looks into a created container."""

    def __init__(self, client: Any, container_id: str) -> None:
        self._api = client.api
        self._id = container_id

    def stat(self, path: str) -> PathFacts | None:
        """What stands at an absolute path, links followed; None when nothing does."""
        headers = self._head(path)
        # Docker resolves the whole chain of links by itself, so one more question is enough.
        if headers is not None and headers.get("linkTarget"):
            headers = self._head(str(headers["linkTarget"]))
        if headers is None:
            return None
        return PathFacts(is_directory=bool(headers["mode"] & _GO_MODE_DIRECTORY))

    def _head(self, path: str) -> dict[str, Any] | None:
        from docker.utils import decode_json_header

        address = f"{self._api.base_url}/v{self._api.api_version}/containers/{self._id}/archive"
        with in_clear_words():
            answer = self._api.head(address, params={"path": path}, timeout=self._api.timeout)
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
        facts: dict[str, Any] = decode_json_header(answer.headers["X-Docker-Container-Path-Stat"])
        return facts


# Go's os.FileMode, not the mode bits of stat(2).
_GO_MODE_DIRECTORY = 1 << 31


def docker_client() -> Any:
    """A client of the engine that the docker command line talks to. Raises DeployError when it does not answer.

    The command line also follows `docker context`, which the SDK does not know; both must reach the same engine.
    """
    import docker

    named = os.environ.get("DOCKER_HOST")
    host = "" if named else _context_host()
    with in_clear_words(named or host or "unix:///var/run/docker.sock"):
        client = docker.DockerClient(host, use_ssh_client=True) if host else docker.from_env(use_ssh_client=True)
        client.ping()
    return client


def _context_host() -> str:
    """The address of the current `docker context`; empty where the command line does not tell."""
    found = run_docker(["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])
    return found.stdout if found.returncode == 0 else ""


@contextmanager
def in_clear_words(address: str = "") -> Iterator[None]:
    """Turn what the SDK raises into one line; `address` is the engine's, where it is not known yet to answer."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except APIError as error:
        raise explain(str(error.explanation or error)) from None
    except (DockerException, RequestException) as error:
        if "Permission denied" in str(error):
            raise explain("permission denied while trying to connect") from None
        if "paramiko" in str(error):
            raise DeployError(f"{address} needs a package that is not here", fix="pip install 'docker[ssh]'") from None
        why = ": ".join(part for part in (address, _reason(error)) if part)
        fix = explain("cannot connect to the docker daemon").fix
        raise DeployError("no Docker engine answers", why=why, fix=fix) from None


def _reason(error: BaseException) -> str:
    """What the operating system said, below the words of the SDK and of the libraries that it calls."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())[:200]


def _container_facts(attrs: Mapping[str, Any]) -> ContainerFacts:
    state = attrs["State"]
    return ContainerFacts(
        id=str(attrs["Id"]),
        name=str(attrs["Name"]).lstrip("/"),
        labels=attrs["Config"].get("Labels") or {},
        status=str(state["Status"]),
        exit_code=int(state["ExitCode"]),
        restart_count=int(attrs.get("RestartCount") or 0),
        created_at=_unix_seconds(attrs["Created"]) or 0.0,
        started_at=_unix_seconds(state.get("StartedAt") or ""),
        mounts={str(mount["Destination"]): str(mount.get("Source", "")) for mount in attrs.get("Mounts") or ()},
        restart_policy=str(((attrs.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name") or "no"),
    )


def _unix_seconds(stamp: str) -> float | None:
    """Docker's time stamp, nanoseconds and all; None for its zero value, which means never."""
    if not stamp or stamp.startswith("0001-"):
        return None
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
