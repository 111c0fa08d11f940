"""Engine flags from the layout's `serve` map."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from shardwright.errors import UsageError
from shardwright.layout.provenance import Origin
from shardwright.layout.schema import Layout
from shardwright.resolve.deployment import Argument

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)

# Flags that argparse collects by repetition, and flags whose list is one JSON value; all others take `--flag a b c`.
_REPEATED = frozenset({"--middleware"})
_JSON_LISTS = frozenset({"--allowed-origins", "--allowed-methods", "--allowed-headers"})


def flag_name(key: str) -> str:
    """`max_model_len` as `--max-model-len`; behind a dot stands a key of the flag's JSON, which stays as it is."""
    name, dot, part = key.partition(".")
    return "--" + name.replace("_", "-") + dot + part


def serve_arguments(layout: Layout) -> tuple[Argument, ...]:
    """Each entry of `serve` as an engine flag, in the layout's order; nulls are left out.

    Raises UsageError for a key that cannot be a flag, or one given in both spellings.
    """
    arguments: list[Argument] = []
    seen: dict[str, str] = {}
    for key, value in layout.serve.items():
        origin = layout.origin("serve", key) or Origin("layout", layout.file)
        if not _KEY.fullmatch(key):
            bare = key.lstrip("-").replace("-", "_")
            raise UsageError(f"{origin}: serve.{key}: not the name of a flag", fix=f"write {bare}: without dashes")
        flag = flag_name(key)
        if flag in seen:
            raise UsageError(
                f"{origin}: serve.{key}: {flag} is given twice, also as serve.{seen[flag]}",
                why="the engine silently keeps the last one",
                fix="remove one of the two",
            )
        seen[flag] = key
        if value is not None:
            tokens = _tokens(flag, value, layout.raw("serve", key), _list_texts(layout, key, value))
            arguments += [Argument(group, origin, passthrough=True) for group in tokens]
    return tuple(arguments)


def _tokens(flag: str, value: Any, raw: str | None, items: list[str]) -> list[tuple[str, ...]]:
    if "." in flag:
        # The engine reads what follows as JSON, and always takes one value.
        return [_pair(flag, raw if raw is not None and not isinstance(value, bool) else to_json(value))]
    if value is True:
        return [(flag,)]
    if value is False:
        return [(flag.replace("--", "--no-", 1),)]
    if isinstance(value, Mapping) or flag in _JSON_LISTS:
        return [(flag, to_json(value))]
    if isinstance(value, list):
        if flag in _REPEATED:
            return [_pair(flag, item) for item in items]
        return [(flag, *items)] if items else []
    return [_pair(flag, raw if raw is not None else str(value))]


def _pair(flag: str, text: str) -> tuple[str, ...]:
    # argparse would read a value that begins with a dash as another flag.
    return (f"{flag}={text}",) if text.startswith("-") else (flag, text)


def _list_texts(layout: Layout, key: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        return []
    texts = []
    for index, item in enumerate(value):
        raw = layout.raw("serve", key, str(index))
        texts.append(to_json(item) if isinstance(item, Mapping | list) or raw is None else raw)
    return texts


def to_json(value: Any) -> str:
    """Compact JSON with the layout's own key order."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
