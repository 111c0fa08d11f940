"""`max-model-len`: a request is no longer than the positions that the model was made for."""

from __future__ import annotations

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.facts.positions import YARN, YARN_IS_SCALED, Positions, longest_request
from shardwright.facts.versions import version_in
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of, misread, switched_on, value_of
from shardwright.plan.stages import Plan
from shardwright.resolve.counts import parse_count
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.flags import FITTED_LENGTHS

GATE = "max-model-len"
ALLOW_ENV = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def check_max_model_len(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    asked, shape = value_of(deployment, "--max-model-len"), facts.shape
    if asked is None or asked in FITTED_LENGTHS or shape is None or shape.positions is None:
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


def _stretched(deployment: Deployment, positions: Positions, length: int) -> str:
    """The other way out, where the config stretches positions by YaRN: to name the stretched length as well."""
    lengths = [int(rope.factor * rope.original) for rope in positions.ropes if rope.kind in YARN and rope.original]
    reach = next((reach for reach in sorted(lengths) if reach >= length), None)
    if reach is None or not version_in(deployment.engine.vllm, YARN_IS_SCALED):
        return ""
    return f"; or hf_overrides: {{{positions.key}: {reach}}}, which this version wants beside YaRN's factor"
