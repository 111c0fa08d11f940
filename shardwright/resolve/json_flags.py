"""Engine flags whose value is one JSON map, to which a rule adds an entry beside what the layout says there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shardwright.errors import UsageError
from shardwright.layout.provenance import Origin
from shardwright.resolve.arguments import to_json
from shardwright.resolve.deployment import Argument


def with_entry(
    arguments: Sequence[Argument], flag: str, key: str, value: str | bool, rule: str
) -> tuple[Argument, ...]:
    """The arguments with `key` in the map of `flag`. A key that the layout gives itself is left as it is.

    UsageError when the layout gives the flag something else than a map.
    """
    kept = [argument for argument in arguments if argument.tokens[0] != flag]
    config: dict[str, object] = {}
    for argument in arguments:
        if argument.tokens[0] == flag:
            config |= _given(argument, flag)
    if key in config:
        return tuple(arguments)
    return (*kept, Argument((flag, to_json({**config, key: value})), Origin("rule", rule)))


def _given(argument: Argument, flag: str) -> Mapping[str, object]:
    try:
        value = json.loads(argument.tokens[1])
    except (ValueError, IndexError):
        value = None
    if not isinstance(value, dict):
        name = flag.removeprefix("--").replace("-", "_")
        raise UsageError(f"{argument.origin}: serve.{name}: expected a map", fix="write it as a YAML map")
    return value
