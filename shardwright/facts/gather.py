"""Collect the facts that this machine can give for a layout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from shardwright.connect.project import Project
from shardwright.errors import UsageError
from shardwright.facts.checkpoint import read_checkpoint
from shardwright.facts.engine import EngineFacts, engine_facts
from shardwright.facts.facts import Facts
from shardwright.facts.host import Cards, Host, links_outside, loose_paths, read_host
from shardwright.facts.model import ModelFacts, model_facts_from_config, read_model_directory, read_model_file
from shardwright.facts.packed import packed_linears
from shardwright.facts.shape import model_shape
from shardwright.facts.spec_support import TABLE, SpecTable, read_spec_table
from shardwright.layout.dotted import dotted_entries
from shardwright.layout.schema import Layout

if TYPE_CHECKING:
    from shardwright.connect.trees import SourceTree
    from shardwright.facts.docker_host import DockerHost
    from shardwright.facts.facts_file import GivenFacts
    from shardwright.facts.virtual_tp import VirtualTpFacts
    from shardwright.facts.weights import WeightFacts


def gather_facts(
    layout: Layout,
    project: Project,
    *,
    host: bool,
    given: GivenFacts | None = None,
    tree: SourceTree | None = None,
) -> Facts:
    """Model and checkpoint facts from files, and with `host` those of this machine, which costs processes.

    `given` stands in for another machine: what it states comes first, and this one is not looked at. `tree` holds the
    engine's own files; without it the bundled table of exactly this release is read.
    """
    directory = model_directory(layout, project)
    engine = engine_facts(layout, project, tree=tree)
    if given is not None:
        return _given_facts(layout, project, directory, engine, given)
    model = _model(layout, project, directory)
    cards = _cards(host and layout.engine.platform == "cuda")
    weights = _weights(layout, directory, model) if host and directory and model else None
    return Facts(
        model=model,
        checkpoint=read_checkpoint(directory, layout.model.path) if directory else None,
        gpus=cards.gpus,
        shape=model.shape if model else None,
        engine=engine,
        links=cards.links,
        host=_host(layout, project, host, cards),
        weights=weights,
        packed=weights.packed if weights else (),
        virtual_tp=_virtual_tp(layout, project, directory, tree=tree),
    )


def _virtual_tp(
    layout: Layout,
    project: Project,
    directory: Path | None,
    *,
    given: GivenFacts | None = None,
    tree: SourceTree | None = None,
) -> VirtualTpFacts | None:
    """For layouts that name the patch, and for model folders that carry a plan, with or without the patch."""
    from shardwright.facts import virtual_tp
    from shardwright.facts.vtp_ladder import evidence_file, read_evidence

    named = "virtual-tp" in layout.patches
    if given is not None and given.config is not None:
        config, source = given.config, given.source
    else:
        found = (
            virtual_tp.config_of(layout.model.path, layout.model.facts, directory, project)
            if (named or directory is not None)
            else None
        )
        if found is None:
            return None
        config, source = found
    if not named and virtual_tp.SIDECAR_KEY not in config:
        return None
    table = project.find(virtual_tp.TABLE)
    if table is None:
        return None
    return virtual_tp.VirtualTpFacts(
        source,
        config,
        virtual_tp.read_vtp_table(table),
        virtual_tp.has_tactic_filter(tree) if tree is not None else None,
        read_evidence(evidence_file(project.state_dir(), layout.name)),
    )


def _weights(layout: Layout, directory: Path, model: ModelFacts) -> WeightFacts | None:
    """From the checkpoint's headers: a tenth of a second for a large one, which `cmd` does not have."""
    from shardwright.facts.checkpoint_weights import read_weights

    return read_weights(directory, layout.model.path, model.num_layers)


def _given_facts(
    layout: Layout, project: Project, directory: Path | None, engine: EngineFacts, given: GivenFacts
) -> Facts:
    config, overrides = given.config, hf_overrides(layout)
    if config is None:
        model = _model(layout, project, directory)
        shape = model.shape if model else None
    else:
        shape = model_shape(config, given.source, overrides)
        model = model_facts_from_config(config, given.source, overrides) if shape.layers is not None else None
    return Facts(
        model=model,
        checkpoint=given.checkpoint,
        gpus=given.gpus,
        shape=shape,
        engine=replace(engine, files=given.engine_files, seen=given.engine_version is not None),
        links=given.links,
        host=given.host,
        nodes=given.nodes,
        log=given.log,
        virtual_tp=_virtual_tp(layout, project, directory, given=given),
        weights=_given_weights(given, model),
        packed=packed_linears((name, entry.get("shape")) for name, entry in _with_shapes(given)),
    )


def _with_shapes(given: GivenFacts) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, entry) for name, entry in given.headers.items() if isinstance(entry, Mapping)]


def _given_weights(given: GivenFacts, model: ModelFacts | None) -> WeightFacts | None:
    if not given.headers or model is None:
        return None
    from shardwright.facts.checkpoint_weights import given_weights

    return given_weights(given.headers, model.num_layers, given.source)


def model_directory(layout: Layout, project: Project) -> Path | None:
    """The checkpoint folder on this host, when there is one."""
    path = locate_model(layout.model.path, project)
    try:
        return path if path is not None and path.is_dir() else None
    except OSError as error:
        where = layout.origin("model", "path")
        raise UsageError(f"{where}: model.path: {error.strerror}: {str(path)[:200]}") from None


def locate_model(path: str, project: Project) -> Path | None:
    """The absolute host path that `model.path` means; None for a hub id such as `org/name`.

    A relative path is looked up in the project, then among the shipped files.
    """
    if path.startswith(("/", "~")):
        return Path(os.path.abspath(os.path.expanduser(path)))
    found = project.find(path)
    if found is not None:
        return found
    if path.startswith(".") or path.count("/") != 1:
        return Path(os.path.abspath(project.root / path))
    return None


def spec_table(project: Project) -> SpecTable:
    file = project.find(TABLE)
    return read_spec_table(file) if file else SpecTable(())


def _model(layout: Layout, project: Project, directory: Path | None) -> ModelFacts | None:
    overrides = hf_overrides(layout)
    if directory is not None:
        found = read_model_directory(directory, layout.model.path, overrides)
        if found is not None:
            return found
    if layout.model.facts is None:
        return None
    relative = f"configs/models/{layout.model.facts}.yaml"
    file = project.find(relative) if ".." not in relative else None
    if file is None:
        where = layout.origin("model", "facts")
        raise UsageError(f"{where}: model.facts: there is no {relative}", fix="name a file of configs/models")
    return read_model_file(file, relative, overrides)


def hf_overrides(layout: Layout) -> Mapping[str, Any]:
    """The layout's `serve.hf_overrides` map, or what its parts (`hf_overrides.key: …`) say together, as the engine
    would take them; empty when there are none.
    """
    parts = [
        (key, value)
        for key, value in layout.serve.items()
        if "." in key and key.partition(".")[0].replace("-", "_") == "hf_overrides" and value is not None
    ]
    if parts:
        return dotted_entries(parts)
    value = layout.serve.get("hf_overrides", layout.serve.get("hf-overrides"))
    if isinstance(value, str):
        import json

        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            where = layout.origin("serve", "hf_overrides") or layout.origin("serve", "hf-overrides")
            raise UsageError(f"{where}: serve.hf_overrides: not valid JSON: {error}") from None
    return value if isinstance(value, Mapping) else {}


def _cards(asked: bool) -> Cards:
    """Of this machine where the layout wants NVIDIA cards."""
    if not asked:
        return Cards()
    from shardwright.facts.nvml import read_cards

    return read_cards()


def _host(layout: Layout, project: Project, host: bool, cards: Cards) -> Host:
    """This machine. Without `host` only what costs nothing: whether the project's own mount sources are there."""
    sources = [mount.source for mount in layout.container.mounts if not mount.volume]
    own = [source for source in sources if not source.startswith(("/", "~"))]
    missing = tuple(source for source in own if not (project.root / source).exists())
    if not host:
        return Host(missing=missing)
    folders = [Path(os.path.abspath(project.root / os.path.expanduser(source))) for source in sources]
    outside = tuple(pair for folder in folders if folder.is_dir() for pair in links_outside(folder))
    code = [folder for folder in folders if folder.suffix == ".py"]
    container, docker = layout.container, _docker_host(layout, cards)
    host_network = layout.runtime == "docker" and container.network == "host"
    model = locate_model(layout.model.path, project)
    disks = (project.root, *((model,) if model else ()), *((docker.root,) if docker else ()))
    return replace(
        read_host(disks, container.container_port if host_network else container.publish_port, cards.driver),
        runtimes=docker.runtimes if docker else (),
        missing=missing,
        outside=outside,
        loose=tuple(path for place in (project.root / "overlays", *code) for path in loose_paths(place)),
    )


def _docker_host(layout: Layout, cards: Cards) -> DockerHost | None:
    """Only where there are cards to give: on any other machine the layout is only looked at."""
    if not cards.gpus or layout.runtime != "docker" or layout.container.tool != "docker":
        return None
    from shardwright.facts.docker_host import read_docker_host

    return read_docker_host()
