"""Variables of the engine's environment: known to this version, to the image, or to a patch."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.layout.overrides import ENV_RULES
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment, EnvPair

_PREFIX = "VLLM_"
# Near enough to a known name to be a slip of the pen rather than a name of somebody else's.
_TYPO = 0.9
_NEAR = 0.75


def check_engine_variables(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`engine-env`: every VLLM_* variable is read by this version, the image or a patch, and none is meant for us."""
    declared = frozenset(deployment.engine.provides.envs)
    misplaced = [_misplaced(pair, key) for pair, key in _overrides(deployment) if pair.name not in declared]
    return [*misplaced, *_engine_variables(deployment, facts, declared)]


def _overrides(deployment: Deployment) -> Iterator[tuple[EnvPair, str]]:
    """Variables of the engine that are `deploy`'s own, each with the layout key that it stands for."""
    if deployment.engine.command is not None or deployment.engine.entrypoint is not None:
        # What a script of the image reads is its own affair.
        return
    keys = {rule.variable: ".".join(rule.path) for rule in ENV_RULES}
    yield from ((pair, keys[pair.name]) for pair in deployment.env if pair.name in keys)


def _misplaced(pair: EnvPair, key: str) -> Finding:
    return Finding(
        "engine-env",
        "warn",
        f"{pair.name} in env: reaches the engine, which does not read it ({pair.origin})",
        why="it acts in the environment of deploy, so here the setting is silently lost",
        fix=f"write {key}: {pair.value}; or, where the image reads it, engine.provides: {{envs: [{pair.name}]}}",
    )


def _engine_variables(deployment: Deployment, facts: Facts, declared: frozenset[str]) -> list[Finding]:
    # In small letters a name is read by nobody, however well it is spelled.
    own = [pair for pair in deployment.env if pair.name.upper().startswith(_PREFIX) and pair.origin.kind != "rule"]
    asked = [pair for pair in own if pair.name not in declared]
    if not asked:
        return []
    if facts.engine is None or facts.engine.table is None:
        names = ", ".join(pair.name for pair in asked)
        text = f"the variables of vLLM {deployment.engine.vllm} are not known here, so unchecked: {names}"
        return [Finding("engine-env", "unknown", text, fix="deploy check --in-image reads them from the engine")]
    engine, table = facts.engine, facts.engine.table
    known = frozenset(table.envs)
    return [_unread(pair, engine, table) for pair in asked if pair.name not in known]


def _unread(pair: EnvPair, engine: EngineFacts, table: EngineTable) -> Finding:
    from difflib import SequenceMatcher, get_close_matches

    text = f"{pair.name} is not read by vLLM {table.vllm} ({pair.origin})"
    why = "the engine only logs 'Unknown vLLM environment variable detected' and runs without the setting"
    name = pair.name.upper()
    having = [other.vllm for other in engine.others if pair.name in other.envs]
    text += f"; {' and '.join(having)} did" if having else ""
    retired = engine.retired.envs.get(name)
    if retired is not None:
        return Finding("engine-env", "reject", text, why=why, fix=retired)
    near = get_close_matches(name, table.envs, cutoff=_NEAR)
    meant = f"did you mean {near[0]}?" if near else f"remove {pair.name} from env:"
    if having:
        return Finding("engine-env", "reject", text, why=why, fix=meant)
    if near and SequenceMatcher(None, name, near[0]).ratio() >= _TYPO:
        return Finding("engine-env", "reject", text, why=why, fix=meant)
    return Finding(
        "engine-env",
        "warn",
        f"{text}, and neither the image nor a patch declares it",
        why=why,
        fix=f"{meant} Where the image's own code reads it: engine.provides: {{envs: [{pair.name}]}}",
    )
