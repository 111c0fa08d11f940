"""Variables of the engine's environment: known to this version, to the image, or to a patch."""

from __future__ import annotations

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment, EnvPair

_PREFIX = "VLLM_"
# Near enough to a known name to be a slip of the pen rather than a name of somebody else's.
_TYPO = 0.9
_NEAR = 0.75


def check_engine_variables(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`engine-env`: every VLLM_* variable is read by this version, by the image, or by a patch."""
    # In small letters a name is read by nobody, however well it is spelled.
    own = [pair for pair in deployment.env if pair.name.upper().startswith(_PREFIX) and pair.origin.kind != "rule"]
    declared = frozenset(deployment.engine.provides.envs)
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
