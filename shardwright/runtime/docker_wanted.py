"""What a rendered `docker run` asks for, as plain data: the command line, read the way Docker reads it."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.connect.docker_sdk import ImageFacts
from shardwright.gates.container import size_gib
from shardwright.runtime import docker_options as options
from shardwright.runtime.description import Description, FileState, MountedFrom, value_digest

BARE_FLAGS = ("--detach", "--privileged")
"""All others take one value."""
_PLAIN_FLAGS = {"--ipc": "ipc", "--restart": "restart", "--stop-timeout": "stop_timeout_s"}


@dataclass(frozen=True)
class RunCommand:
    """`docker run` taken apart: flags in their order, the image, and what follows it."""

    flags: tuple[tuple[str, str], ...]
    image: str
    words: tuple[str, ...]

    def all(self, flag: str) -> tuple[str, ...]:
        return tuple(value for name, value in self.flags if name == flag)

    def last(self, flag: str) -> str | None:
        values = self.all(flag)
        return values[-1] if values else None


def read_run(argv: Sequence[str]) -> RunCommand:
    """The parts of `docker run FLAGS IMAGE WORDS`."""
    flags: list[tuple[str, str]] = []
    at = argv.index("run") + 1
    while argv[at].startswith("--"):
        bare = argv[at] in BARE_FLAGS
        flags.append((argv[at], "" if bare else argv[at + 1]))
        at += 1 if bare else 2
    return RunCommand(tuple(flags), argv[at], tuple(argv[at + 1 :]))


def describe_run(run: RunCommand, image: ImageFacts | None, files: Mapping[str, FileState]) -> Description:
    """The container that the command would make of `image`; None: the reference names none on this host."""
    config = image.config if image is not None else {}
    env = dict(pair.partition("=")[::2] for pair in (*(config.get("Env") or ()), *run.all("--env")))
    return Description(
        image=image.id if image is not None else "",
        image_name=run.image,
        argv=_argv(run, config, known=image is not None),
        env={name: value_digest(value) for name, value in env.items()},
        mounts={target: mount for spec in run.all("--mount") for target, mount in [read_mount(spec)]},
        options=_options(run, config),
        files=files,
    )


def read_mount(spec: str) -> tuple[str, MountedFrom]:
    """Target and source of one `--mount` value, which is a line of CSV."""
    (row,) = csv.reader([spec])
    fields = dict(field.partition("=")[::2] for field in row)
    kind = fields["type"]
    source = os.path.normpath(fields["src"]) if kind == "bind" else fields["src"]
    return os.path.normpath(fields["dst"]), MountedFrom(kind, source, "readonly" in fields)


def _argv(run: RunCommand, config: Mapping[str, object], *, known: bool) -> tuple[str, ...]:
    entrypoint = run.last("--entrypoint")
    if entrypoint is not None:
        return (entrypoint, *run.words)
    if not known:
        return ()
    return (*_texts(config.get("Entrypoint")), *(run.words or _texts(config.get("Cmd"))))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, Iterable) else ()


def _options(run: RunCommand, config: Mapping[str, object]) -> dict[str, str]:
    asked = {
        "gpus": options.gpus(run.last("--gpus")),
        "network": options.network(run.last("--network")),
        "publish": options.published(_published(value) for value in run.all("--publish")),
        "devices": " ".join(sorted(options.device(value) for value in run.all("--device"))),
        "ulimits": " ".join(sorted(options.ulimit(value) for value in run.all("--ulimit"))),
        "security_opt": options.security(run.all("--security-opt")),
        "privileged": "yes" if run.all("--privileged") else "",
        "healthcheck": _health(run, config),
        "user": str(config.get("User") or ""),
    }
    shm = size_gib(run.last("--shm-size"))
    if shm is not None:
        asked["shm_size"] = options.size(int(shm * (1 << 30)))
    for flag, key in _PLAIN_FLAGS.items():
        value = run.last(flag)
        if value is not None:
            asked[key] = value
    return {**options.DEFAULTS, **{key: value for key, value in asked.items() if value}}


def _published(value: str) -> tuple[str, str, str]:
    host, host_port, inner_port = value.rsplit(":", 2)
    return host.strip("[]"), host_port, inner_port if "/" in inner_port else f"{inner_port}/tcp"


def _health(run: RunCommand, config: Mapping[str, object]) -> str:
    command = run.last("--health-cmd")
    if command is None:
        return options.health(config.get("Healthcheck"))
    times = {
        key: int((run.last(flag) or "0s").removesuffix("s")) * 10**9
        for flag, key in (
            ("--health-interval", "Interval"),
            ("--health-timeout", "Timeout"),
            ("--health-start-period", "StartPeriod"),
        )
    }
    return options.health({"Test": ["CMD-SHELL", command], "Retries": int(run.last("--health-retries") or 0), **times})
