"""What the engine of a layout understands: the table of its build, and where names that it lacks went."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from shardwright.connect.project import Project
from shardwright.facts.engine_tables import EngineTable, Retired, all_tables, bundled_table, retired_names
from shardwright.layout.schema import Layout

if TYPE_CHECKING:
    from shardwright.connect.trees import SourceTree


class EngineFacts(Struct, frozen=True):
    """`table` is None where no table of exactly this version is at hand.

    `others` and `retired` are read only when the layout uses a name that the table lacks. `files`: sha256 of files by
    their path below the vllm package, None where the engine has no such file; empty where nobody looked into it.
    `seen`: the version is that of the engine itself, not only what the layout says.
    """

    table: EngineTable | None
    others: tuple[EngineTable, ...] = ()
    retired: Retired = Retired({}, {})
    files: Mapping[str, str | None] = {}
    seen: bool = False


def engine_facts(layout: Layout, project: Project, *, tree: SourceTree | None = None) -> EngineFacts:
    """The table of `tree` where one is given (cached by digest), else the bundled one of exactly this release."""
    if tree is not None:
        from shardwright.facts.engine_cache import tree_table

        table: EngineTable | None = tree_table(tree, cache_folder(project))
    else:
        table = bundled_table(project, layout.engine.vllm)
    seen = tree is not None
    if table is None or not _lacks(table, layout):
        return EngineFacts(table, seen=seen)
    others = tuple(other for other in all_tables(project) if other.vllm != table.vllm)
    return EngineFacts(table, others, retired_names(project), seen=seen)


def cache_folder(project: Project) -> Path:
    return project.state_dir() / "cache"


def _lacks(table: EngineTable, layout: Layout) -> bool:
    known = {flag.name for flag in table.flags}
    if any("--" + key.partition(".")[0].replace("_", "-") not in known for key in layout.serve):
        return True
    envs = frozenset(table.envs)
    return any(name.startswith("VLLM_") and name not in envs for name in layout.env)
