"""Tables of an engine build's flags and variables: their form, and where they are found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from shardwright.connect.project import Project
from shardwright.errors import DeployError

FOLDER = "configs/engines"
RETIRED = f"{FOLDER}/retired.json"


class Flag(Struct, frozen=True, omit_defaults=True):
    """One flag of `vllm serve`.

    `kind`: switch (no value, no negation) | bool (has a --no- form) | text | int | size (1k, 2M) | size_or_auto |
    float | json | config (a JSON object) | json_or_text | list (several values, of the kind `item`) |
    append (repeated) | optional (value may be left out). `folds`: the engine lowers the value and turns dashes into
    underscores. `default` is JSON; None where it is made at run time. `low`, `above`, `high`, `below`: what a number
    must be at least, above, at most and below. `keys`: the entries that a JSON object of this flag may have; empty
    where any may stand there.
    """

    name: str
    aliases: tuple[str, ...] = ()
    kind: str = "text"
    choices: tuple[str, ...] = ()
    optional: bool = False
    item: str = ""
    folds: bool = False
    default: str | None = None
    deprecated: bool = False
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    keys: tuple[str, ...] = ()


class EngineTable(Struct, frozen=True):
    """What one engine build understands; `source` names the build that it was read from."""

    vllm: str
    source: str
    flags: tuple[Flag, ...]
    envs: tuple[str, ...]
    attention_backends: tuple[str, ...]
    tool_parsers: tuple[str, ...] = ()
    reasoning_parsers: tuple[str, ...] = ()


class Retired(Struct, frozen=True):
    """Names that the newest bundled version does not know any more: what to write instead, as a sentence."""

    flags: dict[str, str]
    envs: dict[str, str]


def release(version: str) -> str | None:
    """`0.30`, `0.30.0`, `0.30.0+cpu` as 0.30.0; None for anything that is not a plain release."""
    parts = version.strip().partition("+")[0].split(".")
    if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    return ".".join([*parts, "0"][:3])


def bundled_table(project: Project, version: str) -> EngineTable | None:
    """The table of exactly this release; None where there is none, never that of a neighbour."""
    name = release(version)
    file = project.find(f"{FOLDER}/flags-{name}.json") if name else None
    return read_table(file) if file else None


def all_tables(project: Project) -> tuple[EngineTable, ...]:
    """Every bundled table, oldest release first."""
    files: dict[str, Path] = {}
    for base in reversed(project.search):
        files |= {file.name: file for file in (base / FOLDER).glob("flags-*.json")}
    tables = [read_table(file) for file in files.values()]
    return tuple(sorted(tables, key=lambda table: tuple(int(part) for part in table.vllm.split("."))))


def retired_names(project: Project) -> Retired:
    """The hand-written list of names that were retired up to the newest bundled table."""
    file = project.find(RETIRED)
    return msgspec.json.decode(file.read_bytes(), type=Retired) if file else Retired({}, {})


def encode_table(table: EngineTable) -> str:
    """A table as JSON with one flag a line, so that a new release reads as a short diff."""

    def rows(items: Iterable[object]) -> str:
        return "[\n" + ",\n".join(msgspec.json.encode(item).decode() for item in items) + "\n]"

    head = (
        f'"vllm": {msgspec.json.encode(table.vllm).decode()},\n"source": {msgspec.json.encode(table.source).decode()}'
    )
    lists = ("attention_backends", "tool_parsers", "reasoning_parsers")
    names = ",\n".join(f'"{name}": {msgspec.json.encode(getattr(table, name)).decode()}' for name in lists)
    return f'{{{head},\n"flags": {rows(table.flags)},\n"envs": {rows(table.envs)},\n{names}}}\n'


def read_table(file: Path) -> EngineTable:
    """A table from its JSON file; DeployError when it does not read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=EngineTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise DeployError(f"{file.name} is not a table of engine flags: {error}") from None
