"""Virtual tensor parallelism for a checkpoint or a layout: gather what it needs, plan it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from shardwright.campaign.vtp.checkpoint import read_tensors
from shardwright.connect.project import Project
from shardwright.errors import DeployError, UsageError
from shardwright.facts.gather import locate_model
from shardwright.facts.virtual_tp import (
    SIDECAR_KEY,
    TABLE,
    VirtualTpFacts,
    VtpTable,
    config_of,
    read_config,
    read_vtp_table,
)
from shardwright.gates.options import value_of
from shardwright.layout.load import find_layout, load_layout
from shardwright.plan.virtual_sizes import Alignment, alignment_for, model_sizes
from shardwright.plan.virtual_tp import VirtualPlan, make_plan
from shardwright.resolve.deployment import Deployment

# What the layouts of this kind ask for; a bare checkpoint is planned for the same pair.
DEFAULT_ATTENTION, DEFAULT_MOE, DEFAULT_VLLM = "FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass", "0.30.0"


class VtpTarget(Struct, frozen=True):
    """What is to be planned: the model, and the engine's backends that it is planned for."""

    name: str
    shown: str
    config: Mapping[str, Any]
    directory: Path | None
    """The checkpoint on this host, when there is one."""
    tp: int
    attention: str
    moe: str
    vllm: str


def find_target(name: str, tp: int | None, project: Project, environ: Mapping[str, str]) -> VtpTarget:
    """A checkpoint folder, a bundled model file by name, or a layout; a layout and a sidecar bring their own `tp`."""
    directory = Path(name)
    if (directory / "config.json").is_file():
        config = read_config(directory / "config.json", f"{name}/config.json")
        return _bare_target(name, name, config, directory, tp)
    shown = f"configs/models/{name}.yaml"
    facts = project.find(shown) if "/" not in name else None
    if facts is not None:
        return _bare_target(name, shown, read_config(facts, shown), None, tp)
    return _layout_target(name, tp, project, environ)


def find_sidecar(name: str, tp: int | None, project: Project, environ: Mapping[str, str]) -> tuple[Path, int | None]:
    """The model folder to check, and the TP that it must be for: a folder by path, or that of a layout by name."""
    if Path(name).is_dir():
        return Path(name), tp
    found = find_target(name, tp, project, environ)
    if found.directory is None:
        raise UsageError(f"the model folder of {name} is not on this host", fix="name its folder")
    return found.directory, found.tp


def plan_for(target: VtpTarget, project: Project) -> VirtualPlan:
    """The plan of a target; unit sizes come from the checkpoint's headers where it lies on this host."""
    sizes = model_sizes(target.config, target.shown)
    table = load_table(project)
    alignment = alignment_for(table, sizes.model_type, target.attention, target.moe, target.vllm)
    found = read_tensors(target.directory, target.name, sizes) if target.directory else None
    if found is None:
        return make_plan(sizes, target.tp, alignment)
    return make_plan(sizes, target.tp, alignment, found.tensors, found.replicated_bytes)


def alignment_of_deployment(deployment: Deployment, facts: VirtualTpFacts, model_type: str) -> Alignment:
    """The alignment for the backends that a deployment names, or for those that a bare checkpoint is planned for."""
    on_cpu = deployment.platform == "cpu"
    attention = value_of(deployment, "--attention-backend") or ("cpu" if on_cpu else DEFAULT_ATTENTION)
    moe = value_of(deployment, "--moe-backend") or ("cpu" if on_cpu else DEFAULT_MOE)
    return alignment_for(facts.table, model_type, attention, moe, deployment.engine.vllm)


def load_table(project: Project) -> VtpTable:
    file = project.find(TABLE)
    if file is None:
        raise DeployError(f"there is no {TABLE}", fix="install the project again")
    return read_vtp_table(file)


def _bare_target(name: str, shown: str, config: Mapping[str, Any], directory: Path | None, tp: int | None) -> VtpTarget:
    entry = config.get(SIDECAR_KEY)
    size = entry.get("tp_size") if tp is None and isinstance(entry, Mapping) else tp
    if not isinstance(size, int):
        raise UsageError("a checkpoint needs --tp N", fix="add --tp 3")
    return VtpTarget(name, shown, config, directory, size, DEFAULT_ATTENTION, DEFAULT_MOE, DEFAULT_VLLM)


def _layout_target(name: str, tp: int | None, project: Project, environ: Mapping[str, str]) -> VtpTarget:
    try:
        find_layout(name, project)
    except UsageError as error:
        text = "is no folder of a checkpoint, no model of configs/models and no layout"
        raise UsageError(f"{name} {'has no config.json' if Path(name).is_dir() else text}", fix=error.fix) from None
    layout, _ = load_layout(name, project, environ, ())
    path = locate_model(layout.model.path, project)
    attention, moe = layout.serve.get("attention_backend"), layout.serve.get("moe_backend")
    on_cpu = layout.engine.platform == "cpu"
    found = config_of(layout.model.path, layout.model.facts, path, project)
    if found is None:
        raise DeployError(
            f"{layout.name}: the checkpoint {layout.model.path} is not on this host, and no model.facts stand in",
            fix="name the checkpoint folder, or set model.facts",
        )
    config, shown = found
    directory = path if path is not None and (path / "config.json").is_file() else None
    return VtpTarget(
        layout.name,
        shown,
        config,
        directory,
        layout.parallel.tensor if tp is None else tp,
        str(attention or ("cpu" if on_cpu else DEFAULT_ATTENTION)),
        str(moe or ("cpu" if on_cpu else DEFAULT_MOE)),
        layout.engine.vllm,
    )
