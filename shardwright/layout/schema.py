"""The layout format as frozen structs, and its strict decoding. docs/layouts.md shows every key with an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import Document
from shardwright.layout import values
from shardwright.layout.capacity import Capacity, decode_capacity
from shardwright.layout.container import Container, decode_container
from shardwright.layout.provenance import Origin
from shardwright.layout.speculative import Speculative, decode_speculative
from shardwright.layout.speed import SpeedSettings, decode_speed

SCHEMA = "shardwright/v1"
STATUSES = ("ready", "testing", "rejected")
PLATFORMS = ("cuda", "rocm", "cpu")
RUNTIMES = ("docker", "local")
PROBE_APIS = ("chat", "completions")
NEEDLE_WORDINGS = ("access-code", "magic-number")
PROBES = ("smoke", "quality", "degen", "needle", "speed", "repeat", "degen-long", "parity")
"""What `deploy verify` may ask; a layout can declare each of them not applicable."""
_MOST_RANKS = 4096


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
    parsers: tuple[str, ...] = ()


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
    command: tuple[str, ...] | None = None
    """The arguments of an image that starts the engine by its own script; then no flag is derived or passed on."""
    model_flag: bool = False
    """Whether the model is given as `--model` (entry points before 0.10) instead of the first argument."""


class Parallel(Struct, frozen=True):
    tensor: int
    pipeline: int
    layer_partition: str | None
    """Layers per stage as written, joined by commas; judged by a gate, not here."""


class ProbeSettings(Struct, frozen=True):
    """Own prompts and trial counts of a layout; empty prompts mean the built-in ones."""

    degen_trials: int
    degen_prompts: tuple[str, ...]
    degen_api: Literal["chat", "completions"]
    degen_max_tokens: int
    quality_engine_only: bool = False
    """Leave out the quality checks that need a capable model."""
    quality_known: tuple[tuple[str, str], ...] = ()
    """Quality checks that are known to fail, each with the reason; told, but not held against the deployment."""
    needle_wording: Literal["access-code", "magic-number"] = "access-code"
    """How the needle probe puts its facts; a small model knows only the words that it was taught."""
    not_applicable: tuple[tuple[str, str], ...] = ()
    """Probes that mean nothing for this model, each with the reason; they are not asked and never count as passed."""
    speed: SpeedSettings = SpeedSettings()


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
    speculative: Speculative
    env: Mapping[str, Any]
    secrets: tuple[str, ...]
    container: Container
    capacity: Capacity | None
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
    container, probes = top.section("container"), top.section("probes")
    wait = top.section("wait")
    runtime, env = top.choice("runtime", RUNTIMES, "docker"), values.variables(top)
    layout = Layout(
        name=values.layout_name(top),
        file=file,
        status=top.choice("status", STATUSES, "testing"),
        missing_proof=top.text("missing_proof", ""),
        runtime=runtime,
        model=Model(
            path=values.filled_text(model, "path"),
            revision=model.optional_text("revision"),
            facts=model.optional_text("facts"),
            mount=values.absolute_path(model, "mount"),
        ),
        engine=_engine(engine, runtime),
        hardware=_hardware(top.section("hardware")) if top.has("hardware") else None,
        parallel=Parallel(
            tensor=parallel.integer("tensor", 1, minimum=1, maximum=_MOST_RANKS),
            pipeline=parallel.integer("pipeline", 1, minimum=1, maximum=_MOST_RANKS),
            layer_partition=values.layer_partition(parallel),
        ),
        serve=top.free_map("serve"),
        speculative=decode_speculative(top.section("speculative")),
        env=env,
        secrets=values.secret_names(top, env),
        container=decode_container(container),
        capacity=decode_capacity(top.section("capacity")) if top.has("capacity") else None,
        patches=values.patch_names(top),
        nodes=tuple(_node(node) for node in top.sections("nodes")),
        allow=top.texts("allow"),
        probes=_probes(probes),
        wait_timeout_s=wait.integer("timeout_s", 1800, minimum=1),
        v2_runner=values.forced_runner(top),
        document=document,
    )
    for section in (model, parallel, wait):
        section.finish()
    top.finish()
    return layout


def _engine(section: Section, runtime: str) -> Engine:
    provides = section.section("provides")
    engine = Engine(
        image=values.image_name(section, needed=runtime == "docker"),
        digest=section.optional_text("digest"),
        vllm=values.engine_version(section),
        platform=section.choice("platform", PLATFORMS, "cuda"),
        python=section.optional_text("python"),
        entrypoint=section.texts("entrypoint") if section.has("entrypoint") else None,
        command=section.texts("command") if section.has("command") else None,
        model_flag=section.boolean("model_flag", False),
        package_root=values.absolute_path(section, "package_root"),
        provides=Provides(
            attention_backends=provides.texts("attention_backends"),
            compute_capability=provides.texts("compute_capability"),
            envs=provides.texts("envs"),
            parsers=provides.texts("parsers"),
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
        compute_capability=values.compute_capability(section),
        memory_gib=section.number("memory_gib", above=0),
    )
    section.finish()
    return hardware


def _probes(section: Section) -> ProbeSettings:
    degen, quality, needle = section.section("degen"), section.section("quality"), section.section("needle")
    settings = ProbeSettings(
        degen_trials=degen.integer("trials", 40, minimum=1),
        degen_prompts=degen.texts("prompts"),
        degen_api=degen.choice("api", PROBE_APIS, "chat"),
        degen_max_tokens=degen.integer("max_tokens", 1500, minimum=1),
        quality_engine_only=quality.boolean("engine_only", False),
        quality_known=_with_reasons(quality, "known"),
        needle_wording=needle.choice("wording", NEEDLE_WORDINGS, "access-code"),
        not_applicable=_not_applicable(section),
        speed=decode_speed(section.section("speed")),
    )
    degen.finish()
    quality.finish()
    needle.finish()
    section.finish()
    return settings


def _not_applicable(section: Section) -> tuple[tuple[str, str], ...]:
    reasons = _with_reasons(section, "not_applicable")
    for probe, _ in reasons:
        if probe not in PROBES:
            raise section.error(
                "not_applicable", f"there is no probe {probe!r}", fix=f"name one of {', '.join(PROBES)}"
            )
    return reasons


def _with_reasons(section: Section, key: str) -> tuple[tuple[str, str], ...]:
    """A map of names to reasons; none may be empty."""
    reasons = section.free_map(key)
    for name, reason in reasons.items():
        if not isinstance(reason, str) or not reason.strip():
            raise section.error(key, f"{name} has no reason", fix=f"write {name}: REASON")
    return tuple((name, str(reason)) for name, reason in reasons.items())


def _node(section: Section) -> Node:
    node = Node(section.integer("rank", minimum=0), section.text("address"), section.optional_text("facts"))
    section.finish()
    return node
