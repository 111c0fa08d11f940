"""Engine flags whose value is one JSON map: read back from arguments, and added to by rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.errors import UsageError
from shardwright.layout.dotted import dotted_entries
from shardwright.layout.provenance import Origin
from shardwright.resolve.arguments import to_json
from shardwright.resolve.deployment import Argument


def with_entry(
    arguments: Sequence[Argument], flag: str, key: str, value: str | bool, rule: str
) -> tuple[Argument, ...]:
    """The arguments with `key` in the map of `flag`. A key that the layout gives itself is left as it is.

    UsageError when the layout gives the flag something else than a map.
    """
    kept = [argument for argument in arguments if argument.tokens[0].partition(".")[0] != flag]
    config: dict[str, object] = {}
    for argument in arguments:
        if argument.tokens[0] == flag:
            config |= _given(argument, flag)
    config |= dotted_entries(
        (argument.tokens[0].partition("=")[0], value_token(argument))
        for argument in arguments
        if argument.tokens[0].startswith(f"{flag}.")
    )
    if key in config:
        return tuple(arguments)
    return (*kept, Argument((flag, to_json({**config, key: value})), Origin("rule", rule)))


def flag_object(arguments: Sequence[Argument], flag: str) -> Mapping[str, Any]:
    """The JSON object given for a flag, whole or by parts, as the engine takes it; empty where none reads."""
    given = [(argument.tokens[0].partition("=")[0], value_token(argument)) for argument in arguments]
    parts = [(name, value) for name, value in given if name.startswith(f"{flag}.")]
    if parts:
        return dotted_entries(parts)
    whole = [value for name, value in given if name == flag]
    try:
        found = json.loads(whole[-1]) if whole else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def value_token(argument: Argument) -> str:
    """The text of an argument's one value, given as `--flag value` or `--flag=value`."""
    return argument.tokens[1] if len(argument.tokens) > 1 else argument.tokens[0].partition("=")[2]


def _given(argument: Argument, flag: str) -> Mapping[str, object]:
    try:
        value = json.loads(argument.tokens[1])
    except (ValueError, IndexError):
        value = None
    if not isinstance(value, dict):
        name = flag.removeprefix("--").replace("-", "_")
        raise UsageError(f"{argument.origin}: serve.{name}: expected a map", fix="write it as a YAML map")
    return value
