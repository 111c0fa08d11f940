"""`model-runner`: no silent change of the model runner, and none that the engine would refuse."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.facts.facts import Facts
from shardwright.facts.versions import READ, version_in
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of, number_of, switched_on
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.rules import RUNNER_ENV

GATE = "model-runner"

# Speculative methods that model runner V2 does not have, vLLM config/vllm.py
# _get_v2_model_runner_unsupported_features; in 0.28 it names what it has instead.
_LACKED_AT_FIRST = ("ngram", "ngram_gpu", "draft_model", "suffix", "medusa", "mlp_speculator", "custom_class")
# Each row holds from its version to that of the next.
V2_LACKS = (
    (">=0.28", (*_LACKED_AT_FIRST, "extract_hidden_states")),
    (">=0.30", _LACKED_AT_FIRST),
    (">=0.32", ("suffix", "medusa", "mlp_speculator", "custom_class")),
    (">=0.33", ("suffix", "custom_class")),
)
_NOT_READ = ">=0.34"


# Settings of the speculative config that it does not have either, but for these methods.
V2_LACKS_OPTIONS = (
    (READ, "parallel_drafting", ("dflash", "dspark")),
    (">=0.32,<0.34", "use_heterogeneous_vocab", ()),
)


def v2_lacks(version: str, method: str) -> bool | None:
    """Whether V2 of this version lacks a speculative method; None for a version that was not read."""
    rows = [methods for since, methods in V2_LACKS if version_in(version, since)]
    return method in rows[-1] if rows and not version_in(version, _NOT_READ) else None


def check_model_runner(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """At PP > 1 the table of speculation decides, see pp-mtp; here is what holds for any PP."""
    pair = env_of(deployment, RUNNER_ENV)
    pinned = pair.value if pair else None
    if deployment.platform == "cpu":
        if pinned != "1":
            return []
        text = f"{RUNNER_ENV}=1 on the CPU engine"
        return [Finding(GATE, "reject", text, why="model runner V2 needs Triton", fix=f"remove {RUNNER_ENV}")]
    findings = [*_context_parallel(deployment, pinned), *_asynchronous_stages(deployment, pinned)]
    speculation = deployment.speculation
    if not speculation.active or deployment.parallel.pipeline > 1:
        return findings
    version, method = deployment.engine.vllm, speculation.family
    option = _lacking_option(version, method, [name for name, value in speculation.options if value is True])
    if pinned == "0" and method == "dspark" and version_in(version, READ):
        text = f"{method} needs model runner V2, and {RUNNER_ENV}=0 forbids it"
        findings.append(Finding(GATE, "reject", text, fix=f"remove {RUNNER_ENV} or FORCE_V2_RUNNER"))
    if pinned == "0" or not (option or v2_lacks(version, method)):
        return findings
    method = method if option is None else f"{method} with {option}"
    if pinned == "1":
        text = f"model runner V2 of vLLM {version} does not have {method}, and {RUNNER_ENV}=1 demands it"
        why = "the engine raises 'Model Runner V2 does not yet support'"
        findings.append(Finding(GATE, "reject", text, why=why, fix="FORCE_V2_RUNNER=0, or SPEC_METHOD=none"))
    elif version_in(version, ">=0.30"):
        text = f"{method} makes vLLM {version} change to model runner V1 with one log line"
        fix = "FORCE_V2_RUNNER=0 says it openly; or SPEC_METHOD=none"
        findings.append(Finding(GATE, "warn", text, why="speed and features are those of another runner", fix=fix))
    return findings


def _lacking_option(version: str, method: str, options: Sequence[str]) -> str | None:
    rows = ((key, fine) for versions, key, fine in V2_LACKS_OPTIONS if version_in(version, versions))
    return next((key for key, fine in rows if key in options and method not in fine), None)


def _asynchronous_stages(deployment: Deployment, pinned: str | None) -> list[Finding]:
    """From 0.32 on V1 refuses async scheduling over stages where it is asked for, vLLM config/vllm.py."""
    if pinned != "0" or deployment.parallel.pipeline == 1 or not version_in(deployment.engine.vllm, ">=0.32"):
        return []
    if not switched_on(deployment, "--async-scheduling"):
        return []
    stages = deployment.parallel.pipeline
    text = f"async scheduling over {stages} stages needs model runner V2, and {RUNNER_ENV}=0 forbids it"
    return [Finding(GATE, "reject", text, why="the engine raises", fix="leave async_scheduling or FORCE_V2_RUNNER out")]


def _context_parallel(deployment: Deployment, pinned: str | None) -> list[Finding]:
    if pinned != "0" or number_of(deployment, "--prefill-context-parallel-size", 1) == 1:
        return []
    text = f"prefill context parallelism needs model runner V2, and {RUNNER_ENV}=0 forbids it"
    return [Finding(GATE, "reject", text, fix=f"remove {RUNNER_ENV} or FORCE_V2_RUNNER")]
