"""What a deployment's command line and environment say, by the full name of each flag. No gate; gates ask it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.resolve.deployment import Argument, Deployment, EnvPair
from shardwright.resolve.flags import flag_value
from shardwright.resolve.json_flags import flag_object

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


def script_words(deployment: Deployment) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What the layout has a shell or a script of the image run, word by word, by the key that says so.

    A variable counts where its value holds flags, as some images take them.
    """
    container, engine = deployment.container, deployment.engine
    checked = (container.healthcheck.command,) if container.healthcheck else ()
    for place, texts in (
        ("engine.entrypoint", engine.entrypoint or ()),
        ("engine.command", engine.command or ()),
        ("container.healthcheck", checked),
        *((f"env {pair.name}", (pair.value,)) for pair in deployment.env if "--" in pair.value),
    ):
        yield place, tuple(word for text in texts for word in _shell_words(text))


def _shell_words(text: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def value_of(deployment: Deployment, flag: str) -> str | None:
    """The last value given for a flag, as the engine would take it; None where it is absent."""
    return None if deployment.engine.command is not None else flag_value(deployment, flag)


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
    """A JSON object given for a flag, whole or by parts; empty where it is absent or does not read."""
    return {} if deployment.engine.command is not None else flag_object(deployment.engine_args, flag)


def misread(gate: str, error: UsageError, facts: Facts) -> list[Finding]:
    """What a gate says of a flag that does not read: nothing where `engine-flags` says it already."""
    if facts.engine is not None and facts.engine.table is not None:
        return []
    return [Finding(gate, "reject", error.what, why="the engine stops on its command line", fix=error.fix)]


def is_loopback(address: str) -> bool:
    """Whether an address means every host itself, or none in particular."""
    plain = address.strip().strip("[]")
    return plain in ("localhost", "ip6-localhost", "::1", "::", "0.0.0.0") or plain.startswith("127.")


def env_of(deployment: Deployment, name: str) -> EnvPair | None:
    return next((pair for pair in deployment.env if pair.name == name), None)


def node_count(deployment: Deployment) -> int:
    """Hosts that take part: `--nnodes`, else the nodes that the layout lists, else one."""
    return number_of(deployment, "--nnodes", 0) or max(1, len(deployment.nodes))


def world_size(deployment: Deployment) -> int:
    """Ranks of one replica: TP x PP x PCP."""
    pcp = number_of(deployment, "--prefill-context-parallel-size", 1)
    return deployment.parallel.tensor * deployment.parallel.pipeline * pcp


def local_ranks(deployment: Deployment) -> int:
    """Ranks that run on one host, replicas by data parallelism included, as vLLM EngineArgs counts them."""
    nodes, data = node_count(deployment), number_of(deployment, "--data-parallel-size", 1)
    if nodes > 1:
        return world_size(deployment) * data // nodes
    # With a rank of its own the server is one replica of a balancer that stands outside.
    alone = value_of(deployment, "--data-parallel-rank") is not None
    local = 1 if alone else number_of(deployment, "--data-parallel-size-local", data) or 1
    return world_size(deployment) * local


def master_port(deployment: Deployment) -> int:
    """Where the first host waits for the others; vLLM config/parallel.py ParallelConfig.master_port."""
    return number_of(deployment, "--master-port", 29501)
