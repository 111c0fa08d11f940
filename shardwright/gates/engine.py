"""Gates on the engine's own switches: custom all-reduce, timeouts, and flags that the launcher owns."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.rules import PARTITION_ENV, READY_TIMEOUT_ENV

# Flags that the launcher derives, and the layout key that decides each; the short forms are argparse aliases.
OWNED_FLAGS = {
    "--model": "model.path",
    "--revision": "model.revision",
    "--host": "container.publish",
    "--port": "container.publish",
    "--tensor-parallel-size": "parallel.tensor",
    "--tp": "parallel.tensor",
    "--pipeline-parallel-size": "parallel.pipeline",
    "--pp": "parallel.pipeline",
    "--speculative-config": "speculative",
    "--spec-method": "speculative.method",
    "--spec-model": "speculative.model",
    "--spec-tokens": "speculative.num_speculative_tokens",
}


def check_custom_all_reduce(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`custom-all-reduce`: at TP=2 on CUDA it may not be asked for."""
    if deployment.platform != "cuda" or deployment.parallel.tensor != 2:
        return []
    for argument in deployment.engine_args:
        if argument.tokens[0] == "--no-disable-custom-all-reduce":
            return [
                Finding(
                    "custom-all-reduce",
                    "reject",
                    f"custom all-reduce is asked for at TP=2 ({argument.origin})",
                    why="it crashes while CUDA graphs are profiled (custom_all_reduce.cuh:164 'invalid argument')",
                    fix="remove DISABLE_CUSTOM_ALL_REDUCE=0; the rule tp2-custom-all-reduce-off switches it off",
                )
            ]
    return []


def check_ready_timeout(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`ready-timeout`: the engine does not give up before `deploy wait` does."""
    for pair in deployment.env:
        if pair.name != READY_TIMEOUT_ENV:
            continue
        if not (pair.value.isascii() and pair.value.isdigit() and len(pair.value) < 10):
            text = f"{READY_TIMEOUT_ENV}={pair.value!r} is not a whole number of seconds"
            return [Finding("ready-timeout", "reject", text, fix=f"write {READY_TIMEOUT_ENV}: 1800")]
        if int(pair.value) < deployment.wait_timeout_s:
            return [
                Finding(
                    "ready-timeout",
                    "warn",
                    f"{READY_TIMEOUT_ENV}={pair.value} is below the wait timeout of {deployment.wait_timeout_s} s",
                    why="the engine would end a start that deploy wait still waits for",
                    fix=f"remove {READY_TIMEOUT_ENV} from env, or lower wait.timeout_s",
                )
            ]
    return []


def check_owned_flags(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`owned-flags`: what the launcher derives is not also given through `serve` or `env`."""
    findings = []
    for argument in deployment.engine_args:
        flag = argument.tokens[0].partition("=")[0]
        # The engine takes one entry of a JSON flag as --flag.key too.
        owner = OWNED_FLAGS.get(flag.partition(".")[0]) if argument.passthrough else None
        if owner is not None:
            findings.append(_owned(flag, owner, str(argument.origin)))
    names = [pair.name for pair in deployment.env]
    for pair in deployment.env:
        if pair.name == PARTITION_ENV and (names.count(pair.name) > 1 or deployment.partition is None):
            findings.append(_owned(PARTITION_ENV, "parallel.layer_partition", str(pair.origin)))
            break
    return findings


def _owned(name: str, owner: str, origin: str) -> Finding:
    return Finding(
        "owned-flags",
        "reject",
        f"{name} is given by hand ({origin}), but {owner} decides it",
        why="the engine silently keeps the last of two values, and the gates would judge the other one",
        fix=f"remove it and set {owner}",
    )
