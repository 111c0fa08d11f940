"""A deployment as the exact command line that runs it; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from shardwright.layout.provenance import Origin
from shardwright.resolve.deployment import Deployment

PartKind = Literal["command", "argument", "env", "mount"]

SECRETS_TARGET = "/run/secrets/deploy.env"
LABEL_PREFIX = "shardwright"


class Part(Struct, frozen=True):
    """Some neighbouring tokens of the command line that one origin set."""

    kind: PartKind
    tokens: tuple[str, ...]
    origin: Origin


class RenderedCommand(Struct, frozen=True):
    """`argv` is executed as it stands; `env` is added to that process (local runtime only).

    `secrets_file` is the host file, mode 0600, that the container mounts and that only `start` writes.
    """

    parts: tuple[Part, ...]
    env: tuple[tuple[str, str], ...]
    secrets_file: str | None

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(token for part in self.parts if part.kind != "env" or not self.env for token in part.tokens)


def render(deployment: Deployment) -> RenderedCommand:
    """The command line of a deployment for its runtime."""
    return _docker(deployment) if deployment.runtime == "docker" else _local(deployment)


def _docker(deployment: Deployment) -> RenderedCommand:
    tool = deployment.container.tool
    parts = [_tool("docker-run", tool, "run", "--detach", "--pull", "never", "--name", deployment.instance_name)]
    parts += _labels(deployment)
    parts += _confinement(deployment)
    for mount in deployment.mounts:
        spec = _mount_spec("volume" if mount.volume else "bind", mount.source, mount.target, mount.readonly)
        parts.append(Part("mount", ("--mount", spec), mount.origin))
    secrets_file = None
    if deployment.secrets:
        secrets_file = secrets_path(deployment)
        spec = _mount_spec("bind", secrets_file, SECRETS_TARGET, readonly=True)
        parts.append(Part("mount", ("--mount", spec), Origin("rule", "secrets-as-file")))
    parts += [Part("env", ("--env", f"{pair.name}={pair.value}"), pair.origin) for pair in deployment.env]
    parts += _entry(deployment)
    parts += [Part("argument", argument.tokens, argument.origin) for argument in deployment.engine_args]
    return RenderedCommand(tuple(parts), (), secrets_file)


def _mount_spec(kind: str, source: str, target: str, readonly: bool) -> str:
    """The value of --mount, which Docker reads as one line of CSV."""
    fields = [f"type={kind}", f"src={source}", f"dst={target}", *(["readonly"] if readonly else [])]
    return ",".join(_csv_field(field) for field in fields)


def _csv_field(text: str) -> str:
    if not any(mark in text for mark in ',"\r\n'):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _labels(deployment: Deployment) -> Iterable[Part]:
    values = {
        "layout": deployment.name,
        "digest": deployment.digest,
        "project": deployment.project_root,
    }
    for key, value in values.items():
        yield _tool("labels", "--label", f"{LABEL_PREFIX}.{key}={value}")


def _confinement(deployment: Deployment) -> Iterable[Part]:
    container = deployment.container
    publish = f"{container.publish_host}:{container.publish_port}:{container.container_port}"
    rows = (
        ("gpus", container.gpus, "--gpus"),
        ("ipc", container.ipc, "--ipc"),
        ("network", container.network, "--network"),
        ("shm_size", container.shm_size, "--shm-size"),
        ("publish", publish if container.network != "host" else None, "--publish"),
        ("restart", container.restart, "--restart"),
        ("stop_timeout_s", str(container.stop_timeout_s), "--stop-timeout"),
    )
    for key, value, flag in rows:
        if value is not None:
            yield Part("command", (flag, value), _container_origin(deployment, key))
    yield from _devices_and_limits(deployment)
    yield _tool("no-new-privileges", "--security-opt", "no-new-privileges")


def _devices_and_limits(deployment: Deployment) -> Iterable[Part]:
    container = deployment.container
    repeated = (
        ("devices", "--device", container.devices),
        ("ulimits", "--ulimit", tuple(f"{name}={value}" for name, value in container.ulimits)),
        ("security_opt", "--security-opt", container.security_opt),
    )
    for key, flag, values in repeated:
        for value in values:
            yield Part("command", (flag, value), _container_origin(deployment, key))
    if container.privileged:
        yield Part("command", ("--privileged",), _container_origin(deployment, "privileged"))
    check = container.healthcheck
    if check is not None:
        tokens = (
            *("--health-cmd", check.command, "--health-interval", f"{check.interval_s}s"),
            *("--health-timeout", f"{check.timeout_s}s", "--health-retries", str(check.retries)),
            *("--health-start-period", f"{check.start_period_s}s"),
        )
        yield Part("command", tokens, _container_origin(deployment, "healthcheck"))


def _container_origin(deployment: Deployment, key: str) -> Origin:
    return deployment.container_origins.get(key) or Origin("rule", f"container-{key.replace('_', '-')}")


def _entry(deployment: Deployment) -> Iterable[Part]:
    engine = deployment.engine
    image = engine.image or ""
    reference = f"{image}@{engine.digest}" if engine.digest else image
    origin = deployment.image_origin
    entrypoint = engine.entrypoint if engine.entrypoint is not None else ("vllm", "serve")
    if deployment.secrets:
        # The values reach the engine's environment without standing in argv or in the container's configuration.
        script = f'set -a; . {SECRETS_TARGET}; set +a; exec "$@"'
        yield _tool("secrets-as-file", "--entrypoint", "sh")
        yield Part("command", (reference,), origin)
        yield _tool("secrets-as-file", "-c", script, "deploy", *entrypoint)
    elif entrypoint:
        yield _tool("entrypoint", "--entrypoint", entrypoint[0])
        yield Part("command", (reference,), origin)
        if entrypoint[1:]:
            yield _tool("entrypoint", *entrypoint[1:])
    else:
        yield Part("command", (reference,), origin)


def _local(deployment: Deployment) -> RenderedCommand:
    python = deployment.engine.python or "python3"
    parts = [Part("env", (f"{pair.name}={pair.value}",), pair.origin) for pair in deployment.env]
    # -P keeps the current folder from shadowing the overlay's package.
    parts.append(_tool("local-engine", python, "-P", "-m", "vllm.entrypoints.cli.main", "serve"))
    parts += [Part("argument", argument.tokens, argument.origin) for argument in deployment.engine_args]
    return RenderedCommand(tuple(parts), tuple((pair.name, pair.value) for pair in deployment.env), None)


def secrets_path(deployment: Deployment) -> str:
    """Where `start` puts the secrets of this deployment until the container runs."""
    return f"{deployment.project_root}/.deploy/secrets/{deployment.name}.env"


def _tool(rule: str, *tokens: str) -> Part:
    return Part("command", tokens, Origin("rule", rule))
