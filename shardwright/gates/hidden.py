"""`config-file` and `batch-size`: flags in a file that no gate reads; a step smaller than its requests."""

from __future__ import annotations

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import switched_on, value_of, whole_number
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
    """vLLM config/scheduler.py SchedulerConfig.verify_max_model_len: a token a request; uncut prompts in one step."""
    sequences = whole_number(value_of(deployment, "--max-num-seqs"))
    try:
        tokens = parse_count(value_of(deployment, "--max-num-batched-tokens"))
        longest = _uncut_prompt(deployment, facts)
    except UsageError:
        return []
    if tokens is None:
        return []
    findings = []
    why = "the engine raises while it starts"
    if sequences is not None and tokens < sequences:
        text = f"max_num_batched_tokens {tokens} is below max_num_seqs {sequences}"
        fix = f"serve: {{max_num_seqs: {tokens}}}, or more max_num_batched_tokens"
        findings.append(Finding("batch-size", "reject", text, why=why, fix=fix))
    if longest is not None and tokens < longest:
        text = f"max_num_batched_tokens {tokens} is below max_model_len {longest}, and prompts are not cut into chunks"
        fix = "remove enable_chunked_prefill: false, or max_num_batched_tokens"
        findings.append(Finding("batch-size", "reject", text, why=why, fix=fix))
    return findings


def _uncut_prompt(deployment: Deployment, facts: Facts) -> int | None:
    """The longest prompt in tokens that one step has to take whole; None where prompts are cut into chunks."""
    if switched_on(deployment, "--enable-chunked-prefill") is not False:
        return None
    from shardwright.resolve.capacity import max_model_len

    return max_model_len(deployment, facts)
