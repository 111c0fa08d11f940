"""`max-model-len`: a request is no longer than the positions that the model was made for."""

from __future__ import annotations

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.facts.positions import Positions
from shardwright.facts.versions import version_in
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of, misread, switched_on, value_of
from shardwright.plan.stages import Plan
from shardwright.resolve.counts import parse_count
from shardwright.resolve.deployment import Deployment

GATE = "max-model-len"
ALLOW_ENV = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"

# Kinds of rope whose factor the engine does not apply to the positions, vLLM config/model.py _get_and_verify_max_len.
_UNSCALED = frozenset({"su", "longrope", "llama3"})
# From 0.30 on it takes the positions of these as scaled by the checkpoint; before, it scaled their original length.
_YARN = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_YARN_IS_SCALED = ">=0.30"
_AUTO = (None, "auto")


def check_max_model_len(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    asked, shape = value_of(deployment, "--max-model-len"), facts.shape
    if asked in _AUTO or shape is None or shape.positions is None:
        return []
    try:
        length = parse_count(asked)
    except UsageError as error:
        return misread(GATE, error, facts)
    sliding_off = bool(switched_on(deployment, "--disable-sliding-window"))
    limit, key = longest_request(shape.positions, deployment.engine.vllm, sliding_off=sliding_off)
    if length is None or length <= limit:
        return []
    text = f"max_model_len {length:,} is above the {limit:,} positions of the model ({key})"
    allow = env_of(deployment, ALLOW_ENV)
    if allow is not None and allow.value.strip().lower() in ("1", "true"):
        why = f"{ALLOW_ENV} lets it start; beyond its positions the model answers nonsense or reads out of bounds"
        fix = f"deploy needle {deployment.name} --lengths {length}, once it runs; or a shorter max_model_len"
        return [Finding(GATE, "warn", text, why=why, fix=fix, evidence=shape.source)]
    return [
        Finding(
            GATE,
            "reject",
            text,
            why="the engine raises 'User-specified max_model_len is greater than the derived max_model_len'",
            fix=f"MAX_MODEL_LEN={limit}{_stretched(deployment, shape.positions, length)}",
            evidence=shape.source,
        )
    ]


def longest_request(positions: Positions, version: str, *, sliding_off: bool) -> tuple[int, str]:
    """The longest request in tokens that the engine takes, and the key of the config that says so."""
    tokens, key = float(positions.tokens), positions.key
    window = positions.sliding_window
    if sliding_off and window is not None and window < tokens:
        tokens, key = float(window), "sliding_window"
    stretched = [tokens]
    for rope in positions.ropes:
        if rope.kind in _YARN and not version_in(version, _YARN_IS_SCALED):
            stretched.append((rope.original or tokens) * rope.factor)
        elif rope.kind not in _UNSCALED | _YARN:
            stretched.append(tokens * rope.factor)
    return int(max(stretched)), key


def _stretched(deployment: Deployment, positions: Positions, length: int) -> str:
    """The other way out, where the config stretches positions by YaRN: to name the stretched length as well."""
    lengths = [int(rope.factor * rope.original) for rope in positions.ropes if rope.kind in _YARN and rope.original]
    reach = next((reach for reach in sorted(lengths) if reach >= length), None)
    if reach is None or not version_in(deployment.engine.vllm, _YARN_IS_SCALED):
        return ""
    return f"; or hf_overrides: {{{positions.key}: {reach}}}, which this version wants beside YaRN's factor"
