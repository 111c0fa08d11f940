"""What a deployment's command line and environment say, by the full name of each flag. No gate; gates ask it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.resolve.deployment import Argument, Deployment, EnvPair

_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)


def flag_arguments(deployment: Deployment) -> Iterator[tuple[str, tuple[str, ...], Argument]]:
    """Each flag with its value tokens: `--flag=value` is split; the model's own argument is left out.

    An image that starts the engine by its own script has none.
    """
    if deployment.engine.command is not None:
        return
    for argument in deployment.engine_args:
        name, equals, value = argument.tokens[0].partition("=")
        if name.startswith("-"):
            yield name, ((value,) if equals else ()) + argument.tokens[1:], argument


def value_of(deployment: Deployment, flag: str) -> str | None:
    """The last value given for a flag, as the engine would take it; None where it is absent."""
    found = None
    for name, values, _ in flag_arguments(deployment):
        if name == flag:
            found = values[0] if values else ""
    return found


def number_of(deployment: Deployment, flag: str, default: int) -> int:
    """A whole number given for a flag; the default where it is absent or does not read."""
    value = whole_number(value_of(deployment, flag))
    return default if value is None else value


def whole_number(text: str | None) -> int | None:
    """What plain ASCII digits mean; None for anything else, and for more digits than any size has."""
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def switched_on(deployment: Deployment, flag: str) -> bool | None:
    """True for `--flag`, False for `--no-flag`, None where neither is given."""
    state = None
    negative = flag.replace("--", "--no-", 1)
    for name, _, _ in flag_arguments(deployment):
        if name in (flag, negative):
            state = name == flag
    return state


def json_of(deployment: Deployment, flag: str) -> Mapping[str, Any]:
    """A JSON object given for a flag; empty where it is absent or does not read."""
    try:
        value = json.loads(value_of(deployment, flag) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def env_of(deployment: Deployment, name: str) -> EnvPair | None:
    return next((pair for pair in deployment.env if pair.name == name), None)


def node_count(deployment: Deployment) -> int:
    """Hosts that take part: `--nnodes`, else the nodes that the layout lists, else one."""
    return number_of(deployment, "--nnodes", 0) or max(1, len(deployment.nodes))


def world_size(deployment: Deployment) -> int:
    """Ranks of one replica: TP x PP x PCP."""
    pcp = number_of(deployment, "--prefill-context-parallel-size", 1)
    return deployment.parallel.tensor * deployment.parallel.pipeline * pcp
