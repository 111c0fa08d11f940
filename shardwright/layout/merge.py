"""Merge documents: maps merge key by key, everything else is replaced; each value keeps the origin that won."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.connect.strict_yaml import Document, Path


def merge_documents(base: Document, over: Document) -> Document:
    """`over` on top of `base`. A null in `over` unsets the value of `base`."""
    replaced: set[Path] = set()
    data = _merge(base.data, over.data, (), replaced)
    marks = {path: mark for path, mark in base.marks.items() if not _inside(path, replaced)}
    raw = {path: text for path, text in base.raw.items() if not _inside(path, replaced)}
    return Document(data, {**marks, **over.marks}, {**raw, **over.raw})


def _merge(base: Any, over: Any, path: Path, replaced: set[Path]) -> Any:
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        merged = dict(base)
        for key, value in over.items():
            child = (*path, key)
            if key in merged:
                merged[key] = _merge(merged[key], value, child, replaced)
            else:
                merged[key] = value
        return merged
    replaced.add(path)
    return over


def _inside(path: Path, replaced: set[Path]) -> bool:
    return any(path[:length] in replaced for length in range(len(path) + 1))
