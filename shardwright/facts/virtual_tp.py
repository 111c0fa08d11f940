"""Facts for virtual tensor parallelism: the alignment table of the backends, and the config of the model as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from shardwright.connect.decode import Section
from shardwright.connect.project import Project
from shardwright.connect.strict_yaml import load_yaml
from shardwright.errors import DeployError
from shardwright.facts.versions import version_in
from shardwright.facts.vtp_ladder import Evidence

TABLE = "configs/engines/vtp_alignment.yaml"
SCHEMA = "shardwright/vtp-v1"
SIDECAR_KEY = "virtual_tp"
FILTER_METHOD = "get_valid_tactics_for_shape"


class Family(Struct, frozen=True):
    """What a model family aligns to, in elements per rank."""

    model_type: str
    routed_intermediate: int
    shared_intermediate: int
    vocabulary: int


class AttentionBackend(Struct, frozen=True):
    """Head counts per rank that a backend's kernels take; empty takes any."""

    name: str
    heads: tuple[int, ...]
    vllm: str


class MoeBackend(Struct, frozen=True):
    """What a backend rounds a rank's routed width up to, and its widest K tile (0: not known to matter)."""

    name: str
    intermediate: int
    tile_k: int
    vllm: str


class Capability(Struct, frozen=True):
    """A combination that may start at an odd TP. `compute_capability` is the major number."""

    model_type: str
    compute_capability: str
    attention: str
    moe: str
    vllm: str
    activations: str
    proven: str


class VtpTable(Struct, frozen=True):
    families: tuple[Family, ...]
    attention_backends: tuple[AttentionBackend, ...]
    moe_backends: tuple[MoeBackend, ...]
    capabilities: tuple[Capability, ...]

    def family(self, model_type: str) -> Family | None:
        return next((row for row in self.families if row.model_type == model_type), None)

    def attention(self, name: str, vllm: str) -> AttentionBackend | None:
        return next((row for row in self.attention_backends if row.name == name and version_in(vllm, row.vllm)), None)

    def moe(self, name: str, vllm: str) -> MoeBackend | None:
        return next((row for row in self.moe_backends if row.name == name and version_in(vllm, row.vllm)), None)


class VirtualTpFacts(Struct, frozen=True):
    """The model's config.json, unreduced, and the table. A sidecar's config holds its plan under `virtual_tp`.

    `tactic_filter`: whether the engine's FlashInfer drops tactics that do not fit a shape; None where nobody looked.
    `evidence`: what `deploy vtp qualify` kept of this layout.
    """

    source: str
    config: Mapping[str, Any]
    table: VtpTable
    tactic_filter: bool | None = None
    evidence: tuple[Evidence, ...] = ()


class Tree(Protocol):
    """The engine's files, by their path below the vllm package."""

    def read(self, relative: str) -> bytes: ...


def has_tactic_filter(tree: Tree) -> bool | None:
    """Whether the FlashInfer beside the engine filters its MoE tactics by shape; None where its files are not there."""
    try:
        return FILTER_METHOD.encode() in tree.read("../flashinfer/fused_moe/core.py")
    except (OSError, DeployError):
        return None


def read_vtp_table(file: Path) -> VtpTable:
    """The shipped alignment table, strictly; UsageError names file, line and key."""
    top = Section(load_yaml(file.read_text(encoding="utf-8"), TABLE))
    if top.text("schema") != SCHEMA:
        raise top.error("schema", "not an alignment table", fix=f"write schema: {SCHEMA}")
    table = VtpTable(
        families=tuple(_family(row) for row in top.sections("families")),
        attention_backends=tuple(_attention(row) for row in top.sections("attention_backends")),
        moe_backends=tuple(_moe(row) for row in top.sections("moe_backends")),
        capabilities=tuple(_capability(row) for row in top.sections("capabilities")),
    )
    top.finish()
    return table


def config_of(
    path: str, facts: str | None, directory: Path | None, project: Project
) -> tuple[Mapping[str, Any], str] | None:
    """The config of a layout's model and where it was read: the folder on this host, else the bundled model file."""
    if directory is not None and (directory / "config.json").is_file():
        shown = f"{path}/config.json"
        return read_config(directory / "config.json", shown), shown
    shown = f"configs/models/{facts}.yaml"
    file = project.find(shown) if facts and ".." not in facts else None
    return (read_config(file, shown), shown) if file is not None else None


def read_config(file: Path, shown: str) -> Mapping[str, Any]:
    """A config.json, or a bundled model file in YAML, as plain data."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeployError(f"{shown} cannot be read: {reason}", fix="name the folder of a checkpoint") from None
    if file.suffix == ".yaml":
        data = load_yaml(text, shown).data
        config = data.get("config") if isinstance(data, Mapping) else None
    else:
        try:
            config = json.loads(text)
        except ValueError as error:
            raise DeployError(f"{shown} is not valid JSON: {error}") from None
    if not isinstance(config, Mapping):
        raise DeployError(f"{shown} holds no model config")
    return config


def _family(row: Section) -> Family:
    family = Family(
        row.text("model_type"),
        row.integer("routed_intermediate", minimum=1),
        row.integer("shared_intermediate", minimum=1),
        row.integer("vocabulary", minimum=1),
    )
    row.finish()
    return family


def _attention(row: Section) -> AttentionBackend:
    heads = row.any("heads", [])
    if not isinstance(heads, list) or any(isinstance(head, bool) or not isinstance(head, int) for head in heads):
        raise row.error("heads", "expected a list of whole numbers")
    backend = AttentionBackend(row.text("name"), tuple(sorted(heads)), row.text("vllm"))
    row.finish()
    return backend


def _moe(row: Section) -> MoeBackend:
    backend = MoeBackend(
        row.text("name"), row.integer("intermediate", minimum=1), row.integer("tile_k", minimum=0), row.text("vllm")
    )
    row.finish()
    return backend


def _capability(row: Section) -> Capability:
    capability = Capability(
        row.text("model_type"),
        row.text("compute_capability"),
        row.text("attention"),
        row.text("moe"),
        row.text("vllm"),
        row.text("activations"),
        row.text("proven"),
    )
    row.finish()
    return capability
