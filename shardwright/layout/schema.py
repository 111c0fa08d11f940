"""The layout format as frozen dataclasses, and its strict decoding. docs/layouts.md shows every key with an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import Document, Path
from shardwright.layout.provenance import Origin

SCHEMA = "shardwright/v1"
STATUSES = ("ready", "testing", "rejected")
PLATFORMS = ("cuda", "rocm", "cpu")
RUNTIMES = ("docker", "local")
PROBE_APIS = ("chat", "completions")


class Hardware(Struct, frozen=True):
    """The GPUs the layout was made for; memory per card in GiB as the engine counts it."""

    gpus: int
    compute_capability: str
    memory_gib: float


class Model(Struct, frozen=True):
    """`path`: relative to the project, absolute, or a hub id; `engine_path` is what the engine is given."""

    path: str
    revision: str | None
    facts: str | None
    mount: str | None

    @property
    def engine_path(self) -> str:
        return self.mount or self.path


class Provides(Struct, frozen=True):
    """What the image adds to the stock engine of its version; an operator's declaration, checked in the image."""

    attention_backends: tuple[str, ...]
    compute_capability: tuple[str, ...]
    envs: tuple[str, ...]


class Engine(Struct, frozen=True):
    image: str | None
    digest: str | None
    vllm: str
    platform: Literal["cuda", "rocm", "cpu"]
    python: str | None
    """Interpreter with the engine for the local runtime; None means the one that runs `deploy`."""
    entrypoint: tuple[str, ...] | None
    package_root: str | None
    provides: Provides


class Parallel(Struct, frozen=True):
    tensor: int
    pipeline: int
    layer_partition: str | None
    """Layers per stage as written, joined by commas; judged by a gate, not here."""


class ExtraMount(Struct, frozen=True):
    source: str
    target: str
    readonly: bool
    index: int


class Container(Struct, frozen=True):
    """How the container (or local process) is published and confined."""

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
        ]


class ProbeSettings(Struct, frozen=True):
    """Own prompts and trial counts of a layout; empty prompts mean the built-in ones."""

    degen_trials: int
    degen_prompts: tuple[str, ...]
    degen_api: Literal["chat", "completions"]
    degen_max_tokens: int


class Node(Struct, frozen=True):
    rank: int
    address: str
    facts: str | None


class Layout(Struct, frozen=True):
    """One decoded layout. `origin(path)` tells who set a value; `raw(path)` gives its source text."""

    name: str
    file: str
    status: Literal["ready", "testing", "rejected"]
    missing_proof: str
    runtime: Literal["docker", "local"]
    model: Model
    engine: Engine
    hardware: Hardware | None
    parallel: Parallel
    serve: Mapping[str, Any]
    spec_method: str
    draft_tokens: int
    env: Mapping[str, Any]
    secrets: tuple[str, ...]
    container: Container
    patches: tuple[str, ...]
    nodes: tuple[Node, ...]
    allow: tuple[str, ...]
    probes: ProbeSettings
    wait_timeout_s: int
    v2_runner: str | None
    """`1` or `0` when FORCE_V2_RUNNER asked for it; None leaves the choice to the rule."""
    document: Document

    def origin(self, *path: str) -> Origin | None:
        """Who set the value at `path`, or None where nobody did."""
        mark = self.document.marks.get(path)
        return mark if isinstance(mark, Origin) else None

    def raw(self, *path: str) -> str | None:
        """The scalar at `path` exactly as it was written."""
        return self.document.raw.get(path)


def decode_layout(document: Document, file: str) -> Layout:
    """Decode merged layout data. Raises UsageError naming file, line, key and the nearest known key."""
    top = Section(document)
    schema = top.text("schema")
    if schema != SCHEMA:
        raise top.error("schema", f"{schema!r} is not a format this version reads", fix=f"write schema: {SCHEMA}")
    top.any("extends")
    model, engine, parallel = top.section("model"), top.section("engine"), top.section("parallel")
    container, probes, speculative = top.section("container"), top.section("probes"), top.section("speculative")
    wait = top.section("wait")
    layout = Layout(
        name=_name(top),
        file=file,
        status=top.choice("status", STATUSES, "testing"),
        missing_proof=top.text("missing_proof", ""),
        runtime=top.choice("runtime", RUNTIMES, "docker"),
        model=Model(
            path=model.text("path"),
            revision=model.optional_text("revision"),
            facts=model.optional_text("facts"),
            mount=_absolute(model, "mount"),
        ),
        engine=_engine(engine),
        hardware=_hardware(top.section("hardware")) if top.has("hardware") else None,
        parallel=Parallel(
            tensor=parallel.integer("tensor", 1, minimum=1),
            pipeline=parallel.integer("pipeline", 1, minimum=1),
            layer_partition=_partition(parallel),
        ),
        serve=top.free_map("serve"),
        spec_method=speculative.text("method", "none") or "auto",
        draft_tokens=speculative.integer("num_speculative_tokens", 3, minimum=1),
        env=_scalars(top, "env"),
        secrets=_names(top, "secrets"),
        container=_container(container),
        patches=top.texts("patches"),
        nodes=tuple(_node(node) for node in top.sections("nodes")),
        allow=top.texts("allow"),
        probes=_probes(probes),
        wait_timeout_s=wait.integer("timeout_s", 1800, minimum=1),
        v2_runner=_runner(top),
        document=document,
    )
    for section in (model, parallel, speculative, wait):
        section.finish()
    top.finish()
    return layout


def _name(top: Section) -> str:
    name = top.text("name")
    if not name or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name) or not name[0].isalnum():
        raise top.error("name", f"{name!r} cannot name a container", fix="use letters, digits, '-', '_' and '.'")
    return name


def _engine(section: Section) -> Engine:
    provides = section.section("provides")
    engine = Engine(
        image=section.optional_text("image"),
        digest=section.optional_text("digest"),
        vllm=section.text("vllm"),
        platform=section.choice("platform", PLATFORMS, "cuda"),
        python=section.optional_text("python"),
        entrypoint=section.texts("entrypoint") if section.has("entrypoint") else None,
        package_root=_absolute(section, "package_root"),
        provides=Provides(
            attention_backends=provides.texts("attention_backends"),
            compute_capability=provides.texts("compute_capability"),
            envs=provides.texts("envs"),
        ),
    )
    if engine.digest is not None and not engine.digest.startswith("sha256:"):
        raise section.error("digest", f"{engine.digest!r} is not an image digest", fix="it begins with sha256:")
    provides.finish()
    section.finish()
    return engine


def _hardware(section: Section) -> Hardware:
    hardware = Hardware(
        gpus=section.integer("gpus", minimum=1),
        compute_capability=section.text("compute_capability"),
        memory_gib=section.number("memory_gib"),
    )
    section.finish()
    return hardware


def _container(section: Section) -> Container:
    host, host_port, inner_port = _publish(section)
    mounts = []
    for index, mount in enumerate(section.sections("mounts")):
        mounts.append(
            ExtraMount(mount.text("source"), mount.text("target"), mount.boolean("readonly", True), index),
        )
        mount.finish()
    container = Container(
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
    )
    section.finish()
    return container


def _publish(section: Section) -> tuple[str, int, int]:
    text = section.text("publish", "127.0.0.1:8000:8000")
    parts = text.rsplit(":", 2)
    ports = parts[-2:] if len(parts) > 1 else [parts[0], parts[0]]
    if not all(port.isascii() and port.isdigit() and 0 < int(port) < 65536 for port in ports):
        raise section.error("publish", f"{text!r} is not HOST:PORT:PORT", fix='write publish: "127.0.0.1:8000:8000"')
    host = parts[0] if len(parts) == 3 else "127.0.0.1"
    return host, int(ports[0]), int(ports[1])


def _probes(section: Section) -> ProbeSettings:
    degen = section.section("degen")
    settings = ProbeSettings(
        degen_trials=degen.integer("trials", 40, minimum=1),
        degen_prompts=degen.texts("prompts"),
        degen_api=degen.choice("api", PROBE_APIS, "chat"),
        degen_max_tokens=degen.integer("max_tokens", 1500, minimum=1),
    )
    degen.finish()
    section.finish()
    return settings


def _node(section: Section) -> Node:
    node = Node(section.integer("rank", minimum=0), section.text("address"), section.optional_text("facts"))
    section.finish()
    return node


def _partition(section: Section) -> str | None:
    """A list or a text; kept as written, since judging it is a gate's work."""
    value = section.any("layer_partition")
    if value is None or value == "":
        return None
    path: Path = (*section.path, "layer_partition")
    if isinstance(value, list):
        return ",".join(section.document.raw.get((*path, str(i)), str(item)) for i, item in enumerate(value))
    return section.document.raw.get(path, str(value))


def _scalars(top: Section, key: str) -> Mapping[str, Any]:
    values = top.free_map(key)
    for name, value in values.items():
        if isinstance(value, Mapping | list):
            raise Section(top.document, (key,), values).error(name, "expected text; quote JSON values")
    return values


def _names(top: Section, key: str) -> tuple[str, ...]:
    names = top.texts(key)
    for name in names:
        if not name.replace("_", "").isalnum() or not name.isascii():
            raise top.error(
                key,
                "an entry is not a variable name",
                why="secrets are given by name only and are read from the environment at start",
                fix="write secrets: [HF_TOKEN]",
            )
    return names


def _runner(top: Section) -> str | None:
    value = top.optional_text("v2_runner")
    if value in (None, ""):
        return None
    if value not in ("0", "1"):
        raise top.error("v2_runner", f"{value!r} is neither 1 nor 0")
    return value


def _absolute(section: Section, key: str) -> str | None:
    value = section.optional_text(key)
    if value is not None and not value.startswith("/"):
        raise section.error(key, f"{value!r} is not an absolute path")
    return value
