"""Tables of engines that are no bundled release: extracted once from their own files, kept by digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shardwright.connect.atomic import write_file
from shardwright.connect.trees import SourceTree
from shardwright.errors import DeployError
from shardwright.facts.engine_flags import extract_engine_table
from shardwright.facts.engine_tables import EngineTable, encode_table, read_table

# Raised when the same sources give another table.
_FORMAT = "2"
_CONTENT_FILES = ("engine/arg_utils.py", "envs.py", "_version.py")


def tree_table(tree: SourceTree, cache: Path) -> EngineTable:
    """The table of an engine's own files, kept in `cache` under their digest."""
    digest = hashlib.sha256(f"{_FORMAT} {tree.identity}".encode())
    for name in _CONTENT_FILES:
        digest.update(_content(tree, name))
    file = cache / f"engine-{digest.hexdigest()[:32]}.json"
    if file.is_file():
        try:
            return read_table(file)
        except DeployError:
            file.unlink(missing_ok=True)
    table = extract_engine_table(tree, tree.vllm_version, tree.identity)
    cache.mkdir(parents=True, exist_ok=True)
    write_file(file, encode_table(table).encode())
    return table


def _content(tree: SourceTree, name: str) -> bytes:
    try:
        return tree.read(name)
    except FileNotFoundError:
        return b""
