"""The one central object: a fully resolved deployment in which every token knows who set it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from shardwright.layout.capacity import Capacity
from shardwright.layout.container import Container
from shardwright.layout.provenance import Origin
from shardwright.layout.schema import Engine, Hardware, Model, Node, Parallel, ProbeSettings
from shardwright.overlay.patch import Patch

RuntimeKind = Literal["docker", "local"]


class Argument(Struct, frozen=True):
    """One engine flag with its value tokens, e.g. `("--tensor-parallel-size", "4")`.

    `passthrough` marks a flag that the layout's `serve` map gave, as against one that the tool derived.
    """

    tokens: tuple[str, ...]
    origin: Origin
    passthrough: bool = False


class EnvPair(Struct, frozen=True):
    """One environment variable of the engine process; the value is verbatim."""

    name: str
    value: str
    origin: Origin


class Mount(Struct, frozen=True):
    """One bind mount. `source` is an absolute host path, `target` an absolute path in the container.

    `adds` says that the target is new to the image (an additive package), so its absence there is expected. `volume`
    says that `source` is the name of a Docker volume.
    """

    source: str
    target: str
    readonly: bool
    purpose: Literal["model", "overlay", "user"]
    origin: Origin
    adds: bool = False
    volume: bool = False


class Speculation(Struct, frozen=True):
    """The speculative method after `auto` was decided; `asked` keeps what the layout or override said.

    `model`: the draft's path as the engine sees it. `options`: further keys of the engine's config, in order.
    """

    method: str
    asked: str
    draft_tokens: int
    origin: Origin
    model: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def active(self) -> bool:
        return self.method != "none"

    @property
    def family(self) -> str:
        """The method that the engine makes of it: a model's own MTP name, such as glm4_moe_mtp, is mtp."""
        return "mtp" if self.method.endswith("_mtp") else self.method

    def config(self) -> dict[str, Any]:
        """What goes into --speculative-config."""
        model = {} if self.model is None else {"model": self.model}
        return {"method": self.method, "num_speculative_tokens": self.draft_tokens, **model, **dict(self.options)}


class OverlayPlan(Struct, frozen=True):
    """Where the overlays of this deployment live, known before they are built.

    `directory` is the absolute folder of the generated files and their lock, keyed by engine and patch contents.
    `package_root` is the folder of the `vllm` package that the mounts cover: in the image for docker, None for local.
    """

    directory: str
    package_root: str | None

    @property
    def key(self) -> str:
        """Engine and patch contents in one word, as the last two folders of `directory` have them."""
        engine, _slash, series = self.directory.rpartition("/")
        return f"{engine.rpartition('/')[2]}-{series}"

    @property
    def farm(self) -> str:
        """The link farm of a local engine, beside the overlay; it goes first on PYTHONPATH."""
        return f"{self.directory}.farm"


class RuleNote(Struct, frozen=True):
    """A default rule that acted and wants to be seen: its name and one line."""

    rule: str
    message: str
    warn: bool = False


class Deployment(Struct, frozen=True):
    """What will run, frozen. Renderers, gates, runtimes and exporters read this and nothing else."""

    name: str
    status: Literal["ready", "testing", "rejected"]
    missing_proof: str
    runtime: RuntimeKind
    project_root: str
    model: Model
    engine: Engine
    parallel: Parallel
    hardware: Hardware | None
    container: Container
    partition: str | None
    """Raw text of the hand partition that will reach the engine; None when there is none."""
    speculation: Speculation
    engine_args: tuple[Argument, ...]
    env: tuple[EnvPair, ...]
    secrets: tuple[str, ...]
    mounts: tuple[Mount, ...]
    patches: tuple[Patch, ...]
    unknown_patches: tuple[str, ...]
    overlay: OverlayPlan | None
    waivers: tuple[str, ...]
    probes: ProbeSettings
    wait_timeout_s: int
    notes: tuple[RuleNote, ...]
    image_origin: Origin
    container_origins: Mapping[str, Origin]
    capacity: Capacity | None = None
    nodes: tuple[Node, ...] = ()

    @property
    def platform(self) -> str:
        return self.engine.platform

    @property
    def digest(self) -> str:
        """sha256 over everything that decides what runs, independent of where the project lies on this host."""
        root = self.project_root.rstrip("/") + "/"
        content = {
            "runtime": self.runtime,
            "image": [self.engine.image, self.engine.digest, self.engine.entrypoint],
            "command": self.engine.command,
            "python": self.engine.python.removeprefix(root) if self.engine.python else None,
            "args": [[token.replace(root, "") for token in argument.tokens] for argument in self.engine_args],
            "env": [[pair.name, pair.value.replace(root, "")] for pair in self.env],
            "secrets": list(self.secrets),
            "mounts": [[mount.source.removeprefix(root), mount.target, mount.readonly] for mount in self.mounts],
            "overlay": self.overlay.directory.removeprefix(root) if self.overlay else None,
            "container": self.container.identity(),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def instance_name(self) -> str:
        """The container or process name: the layout and the first 8 digits of the digest."""
        return f"{self.name}-{self.digest[:8]}"

    @property
    def served_model_name(self) -> str:
        """The name under which the server lists the model."""
        for argument in self.engine_args:
            if argument.tokens[0] == "--served-model-name" and len(argument.tokens) > 1:
                return argument.tokens[1]
        return self.model.engine_path

    @property
    def base_url(self) -> str:
        """Where this host reaches the server."""
        host, port = self.container.publish_host, self.container.publish_port
        return f"http://{'127.0.0.1' if host in ('0.0.0.0', '') else host}:{port}"
