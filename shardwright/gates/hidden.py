"""`config-file` and `batch-size`: flags in a file that no gate reads; a step smaller than its requests."""

from __future__ import annotations

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import value_of, whole_number
from shardwright.plan.stages import Plan
from shardwright.resolve.counts import parse_count
from shardwright.resolve.deployment import Deployment


def check_config_file(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    path = value_of(deployment, "--config")
    if path is None:
        return []
    why = "the engine takes flags from it, and no check sees one of them"
    fix = "write its flags under serve:"
    return [Finding("config-file", "reject", f"--config {path} brings flags from a file", why=why, fix=fix)]


def check_batch_size(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """vLLM config/scheduler.py SchedulerConfig.verify_max_model_len raises below one token a request."""
    sequences = whole_number(value_of(deployment, "--max-num-seqs"))
    try:
        tokens = parse_count(value_of(deployment, "--max-num-batched-tokens"))
    except UsageError:
        return []
    if tokens is None or sequences is None or tokens >= sequences:
        return []
    text = f"max_num_batched_tokens {tokens} is below max_num_seqs {sequences}"
    fix = f"serve: {{max_num_seqs: {tokens}}}, or more max_num_batched_tokens"
    return [Finding("batch-size", "reject", text, why="the engine raises while it starts", fix=fix)]
