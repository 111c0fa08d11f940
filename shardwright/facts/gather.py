"""Collect the facts that this machine can give for a layout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.connect.project import Project
from shardwright.errors import UsageError
from shardwright.facts.checkpoint import read_checkpoint
from shardwright.facts.facts import Facts
from shardwright.facts.host import read_gpus
from shardwright.facts.model import ModelFacts, read_model_directory, read_model_file
from shardwright.facts.spec_support import TABLE, SpecTable, read_spec_table
from shardwright.layout.schema import Layout


def gather_facts(layout: Layout, project: Project, *, host: bool) -> Facts:
    """Model and checkpoint facts from files, and with `host` the GPUs of this machine, which costs a process."""
    directory = model_directory(layout, project)
    checkpoint = read_checkpoint(directory, layout.model.path) if directory else None
    gpus = read_gpus() if host and layout.engine.platform == "cuda" else None
    return Facts(model=_model(layout, project, directory), checkpoint=checkpoint, gpus=gpus)


def model_directory(layout: Layout, project: Project) -> Path | None:
    """The checkpoint folder on this host, when there is one."""
    path = locate_model(layout.model.path, project)
    return path if path is not None and path.is_dir() else None


def locate_model(path: str, project: Project) -> Path | None:
    """The absolute host path that `model.path` means; None for a hub id such as `org/name`.

    A relative path is looked up in the project, then among the shipped files.
    """
    if path.startswith(("/", "~")):
        return Path(os.path.abspath(os.path.expanduser(path)))
    if "\x00" in path:
        raise UsageError("model.path contains a NUL character")
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
    """The layout's `serve.hf_overrides` map; empty when it is absent."""
    value = layout.serve.get("hf_overrides", layout.serve.get("hf-overrides"))
    if isinstance(value, str):
        import json

        try:
            value = json.loads(value)
        except ValueError as error:
            raise UsageError(f"serve.hf_overrides is not valid JSON: {error}") from None
    return value if isinstance(value, Mapping) else {}
