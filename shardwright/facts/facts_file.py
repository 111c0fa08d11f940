"""`--facts FILE`: facts that stand in for a machine which is not this one. Form: configs/engines/facts.schema.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import Document, load_yaml
from shardwright.errors import UsageError
from shardwright.facts.checkpoint import CheckpointFacts
from shardwright.facts.host import Gpu, Host, LinkKind
from shardwright.facts.versions import parse_version
from shardwright.layout.schema import Layout, Provides
from shardwright.layout.values import file_digest


class GivenFacts(Struct, frozen=True):
    """What a facts file states; None where it is silent. `config` is a config.json as it is."""

    source: str
    config: Mapping[str, Any] | None
    checkpoint: CheckpointFacts | None
    engine_version: str | None
    provides: Provides | None
    gpus: tuple[Gpu, ...] | None
    links: LinkKind | None
    host: Host
    nodes: tuple[Mapping[str, Any], ...]
    log: str | None
    headers: Mapping[str, Any]
    """Tensor names to `{dtype, shape}`, where the file gives these; else whatever the map holds."""
    engine_files: Mapping[str, str | None] = {}


def read_facts_file(file: Path) -> GivenFacts:
    """Read and check a facts file, JSON or YAML. UsageError names the file and the key that does not read."""
    top = Section(_document(file))
    engine, checkpoint = top.section("engine"), top.section("checkpoint")
    given = GivenFacts(
        source=str(file),
        config=top.free_map("model") if top.has("model") else None,
        checkpoint=CheckpointFacts(str(file), _tensors(checkpoint)) if checkpoint.has("tensors") else None,
        engine_version=_version(engine),
        provides=_provides(engine.section("provides")) if engine.has("provides") else None,
        gpus=_gpus(top),
        links=_links(top),
        host=_host(top.section("host")),
        nodes=_nodes(top),
        log=top.optional_text("log"),
        headers=checkpoint.free_map("tensors") if isinstance(checkpoint.any("tensors"), Mapping) else {},
        engine_files=_files(engine),
    )
    for section in (engine, checkpoint, top):
        section.finish()
    return given


def with_given_engine(layout: Layout, given: GivenFacts) -> Layout:
    """The layout with the engine that the facts file found in place of what the layout says of it."""
    engine = layout.engine
    if given.engine_version is not None:
        engine = replace(engine, vllm=given.engine_version)
    if given.provides is not None:
        engine = replace(engine, provides=given.provides)
    return replace(layout, engine=engine)


def _document(file: Path) -> Document:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{file}: the facts file cannot be read: {error.strerror}") from None
    if file.suffix != ".json":
        return load_yaml(text, str(file))
    try:
        return Document(json.loads(text), {(): str(file)}, {})
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not valid JSON: {error}") from None


def _version(engine: Section) -> str | None:
    version = engine.optional_text("vllm")
    if version is not None:
        parse_version(version)
    return version


def _provides(section: Section) -> Provides:
    provides = Provides(
        attention_backends=section.texts("attention_backends"),
        compute_capability=section.texts("compute_capability"),
        envs=section.texts("envs"),
        parsers=section.texts("parsers"),
    )
    section.finish()
    return provides


def _files(engine: Section) -> Mapping[str, str | None]:
    """Digests by path below the vllm package; a leading `vllm/` is taken off."""
    given = engine.section("files")
    files = {path.removeprefix("vllm/"): file_digest(given, path) for path in given.data}
    given.finish()
    return files


def _tensors(section: Section) -> frozenset[str]:
    """Names as a list, or as the keys of a map whose value says whether the tensor is there."""
    value = section.any("tensors")
    if isinstance(value, Mapping):
        return frozenset(name for name, there in value.items() if there is not False and there is not None)
    return frozenset(section.texts("tensors"))


def _gpus(top: Section) -> tuple[Gpu, ...] | None:
    if not top.has("gpus"):
        return None
    cards: list[Gpu] = []
    for section in top.sections("gpus"):
        free = section.number("free_gib") if section.has("free_gib") else None
        card = Gpu(section.text("name", ""), section.text("cc", ""), section.number("mem_gib", 0.0), free)
        cards += [card] * section.integer("count", 1, minimum=1)
        section.finish()
    return tuple(cards)


def _links(top: Section) -> LinkKind | None:
    """`all`, `pairs`, `pcie`, or words that a person or `nvidia-smi topo` uses for these."""
    value = top.optional_text("links")
    if value is None:
        return None
    words = value.lower()
    if words in ("all", "pairs", "pcie"):
        return words  # type: ignore[return-value]
    parts = words.replace(",", " ").replace("+", " ").split()
    counted = any(part.startswith("nv") and part[2:].isdigit() for part in parts)
    nvlink = counted or any(word in words for word in ("nvlink", "nvswitch", "sxm", "hgx"))
    if nvlink and ("no nvlink" in words or "without nvlink" in words):
        nvlink = False
    if nvlink:
        return "pairs" if "pair" in words or "pcie" in words or "sys" in words else "all"
    if any(word in words for word in ("pcie", "sys", "phb", "pix", "pxb", "nvlink")):
        return "pcie"
    raise top.error("links", f"{value!r} does not say how the cards are joined", fix="write all, pairs or pcie")


def _host(section: Section) -> Host:
    def number(key: str) -> float | None:
        return section.number(key) if section.has(key) else None

    host = Host(
        memory_gib=number("memory_gib"),
        shm_gib=number("shm_gib"),
        disk_free_gib=number("disk_free_gib"),
        driver=section.optional_text("driver"),
        runtimes=section.texts("runtimes"),
        selinux=section.optional_text("selinux"),
        listening=tuple(int(port) for port in section.numbers("listening", whole=True)),
        interfaces=section.texts("interfaces"),
        missing=section.texts("missing"),
        outside=_pairs(section, "links"),
        loose=section.texts("loose"),
        caches=_pairs(section, "caches"),
    )
    section.finish()
    return host


def _pairs(section: Section, key: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in section.free_map(key).items())


def _nodes(top: Section) -> tuple[Mapping[str, Any], ...]:
    nodes = top.any("nodes", [])
    if not isinstance(nodes, list) or not all(isinstance(node, Mapping) for node in nodes):
        raise top.error("nodes", "expected a list of maps", fix="write nodes: [{rank: 0, image: ..., partition: ...}]")
    return tuple(nodes)
