"""The `container:` key of a layout: how the container (or local process) is published and confined."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from shardwright.connect.decode import Section
from shardwright.layout import values

TOOLS = ("docker", "podman")


class ExtraMount(Struct, frozen=True):
    """`volume`: `source` is the name of a Docker volume. `asked`: the layout itself says whether it is read-only.

    `base`: sha256 in hex of the engine's file that the source was made from, where it covers one.
    """

    source: str
    target: str
    readonly: bool
    index: int
    volume: bool = False
    asked: bool = False
    base: str | None = None


class Healthcheck(Struct, frozen=True):
    """The container's own check; it marks a container as unhealthy and stops nothing."""

    command: str
    interval_s: int
    timeout_s: int
    retries: int
    start_period_s: int


class Container(Struct, frozen=True):
    """How the container (or local process) is published and confined. `tool`: the command line that runs it."""

    gpus: str | None
    shm_size: str | None
    ipc: str
    network: str | None
    publish_host: str
    publish_port: int
    container_port: int
    restart: str
    stop_timeout_s: int
    keep: int
    """Exited predecessors to keep."""
    mounts: tuple[ExtraMount, ...]
    tool: Literal["docker", "podman"] = "docker"
    devices: tuple[str, ...] = ()
    ulimits: tuple[tuple[str, str], ...] = ()
    security_opt: tuple[str, ...] = ()
    privileged: bool = False
    healthcheck: Healthcheck | None = None

    def identity(self) -> list[Any]:
        """What of this decides how the engine runs, for the deployment's digest."""
        return [
            self.gpus,
            self.shm_size,
            self.ipc,
            self.network,
            self.publish_host,
            self.publish_port,
            self.container_port,
            self.restart,
            self.tool,
            self.devices,
            self.ulimits,
            self.security_opt,
            self.privileged,
        ]


def decode_container(section: Section) -> Container:
    """Decode `container:`. Raises UsageError naming file, line and key."""
    host, host_port, inner_port = values.published_address(section)
    mounts = []
    for index, mount in enumerate(section.sections("mounts")):
        mounts.append(_mount(mount, index))
        mount.finish()
    container = Container(
        tool=section.choice("tool", TOOLS, "docker"),
        gpus=section.optional_text("gpus"),
        shm_size=section.optional_text("shm_size"),
        ipc=section.text("ipc", "private"),
        network=section.optional_text("network"),
        publish_host=host,
        publish_port=host_port,
        container_port=inner_port,
        restart=section.text("restart", "no"),
        stop_timeout_s=section.integer("stop_timeout_s", 30, minimum=0),
        keep=section.integer("keep", 3, minimum=0),
        mounts=tuple(mounts),
        devices=section.texts("devices"),
        ulimits=_ulimits(section),
        security_opt=section.texts("security_opt"),
        privileged=section.boolean("privileged", False),
        healthcheck=_healthcheck(section.section("healthcheck")) if section.has("healthcheck") else None,
    )
    section.finish()
    return container


def _mount(mount: Section, index: int) -> ExtraMount:
    volume = mount.optional_text("volume")
    if volume is not None and mount.has("source"):
        raise mount.error("volume", "a mount has a source or a volume, not both")
    return ExtraMount(
        source=volume or values.filled_text(mount, "source"),
        target=values.absolute_path(mount, "target") or mount.text("target"),
        readonly=mount.boolean("readonly", volume is None),
        index=index,
        volume=volume is not None,
        asked=mount.has("readonly"),
        base=values.file_digest(mount, "base"),
    )


def _ulimits(section: Section) -> tuple[tuple[str, str], ...]:
    limits = section.section("ulimits")
    found = tuple((name, limits.text(name)) for name in limits.data)
    limits.finish()
    return found


def _healthcheck(section: Section) -> Healthcheck:
    healthcheck = Healthcheck(
        command=section.text("command"),
        interval_s=section.integer("interval_s", 30, minimum=1),
        timeout_s=section.integer("timeout_s", 5, minimum=1),
        retries=section.integer("retries", 3, minimum=1),
        start_period_s=section.integer("start_period_s", 900, minimum=0),
    )
    section.finish()
    return healthcheck
