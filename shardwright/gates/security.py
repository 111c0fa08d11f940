"""Secrets that stand where others can read them, and code that the checkpoint brings along."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import flag_arguments, script_words, switched_on
from shardwright.gates.secret_texts import is_reference, looks_secret, names_secret
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

REMOTE_CODE_WAIVER = "trust-remote-code"

_SECRET_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
_REMOTE_CODE = "trust_remote_code"
# Keys of a tokenizer's own words, such as pad_token, are no secrets.
_TOKEN_KEYS = ("token", "auth_token", "access_token", "api_token", "hf_token", "bearer_token", "session_token")


def check_secrets(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`secrets`: no token stands in the command line or in the container's environment. Never prints a value."""
    findings = []
    if looks_secret(deployment.model.path):
        findings.append(_exposed("model.path carries a secret", "HF_TOKEN"))
    for name, values, argument in flag_arguments(deployment):
        variable = _SECRET_FLAGS.get(name)
        keys = [entry for value in values for entry in _entries(value)]
        keys += [(name.rpartition(".")[2], value) for value in values if "." in name]
        secret = (variable is not None and values) or any(looks_secret(value) for value in values)
        if secret or any(_secret_key(key, value) for key, value in keys):
            findings.append(_exposed(f"{name} carries a secret ({argument.origin})", variable or "HF_TOKEN"))
    named = [pair for pair in deployment.env if names_secret(pair.name, pair.value) or looks_secret(pair.value)]
    places = [f"env {pair.name}" for pair in named]
    for place, words in script_words(deployment):
        variable = _in_script(words)
        if variable is not None and place not in places:
            findings.append(_exposed(f"{place} carries a secret", variable))
    return findings + [_exposed(f"env {pair.name} carries a secret ({pair.origin})", pair.name) for pair in named]


def _entries(value: str) -> Iterator[tuple[str, Any]]:
    """Keys of a JSON map with their values, at every depth; nothing for any other text."""
    if not value.startswith("{"):
        return
    try:
        rest = [json.loads(value)]
    except (ValueError, RecursionError):
        return
    while rest:
        found = rest.pop()
        if isinstance(found, dict):
            yield from found.items()
            rest += found.values()
        elif isinstance(found, list):
            rest += found


def _secret_key(key: str, value: Any) -> bool:
    token = key.lower().endswith("token")
    return isinstance(value, str) and (not token or key.lower() in _TOKEN_KEYS) and names_secret(key, value)


def _in_script(words: tuple[str, ...]) -> str | None:
    """The variable that should hold what a script's words give away; None where they give nothing away."""
    for word, following in pairwise((*words, "")):
        name, equals, value = word.partition("=")
        variable = _SECRET_FLAGS.get(name)
        given = value if equals else following
        if variable is not None and given and not is_reference(given):
            return variable
        if equals and not name.startswith("-") and names_secret(name, value):
            return name
    return "HF_TOKEN" if looks_secret(" ".join(words)) else None


def _exposed(message: str, variable: str) -> Finding:
    return Finding(
        "secrets",
        "reject",
        message,
        why="it would stand in the process list, in docker inspect, in the shell's history and in records",
        fix=f"take it out, write secrets: [{variable}], and export {variable} before deploy start",
    )


def check_remote_code(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`remote-code`: --trust-remote-code only with the named allowance, whoever hands it to the engine."""
    source = _remote_code_source(deployment)
    if source is None:
        return []
    if REMOTE_CODE_WAIVER in deployment.waivers:
        text = f"code of the checkpoint runs in the engine, allowed by {REMOTE_CODE_WAIVER}"
        return [Finding("remote-code", "info", text)]
    return [
        Finding(
            "remote-code",
            "reject",
            f"{source} runs Python that the checkpoint brings along",
            why="whoever can change the checkpoint's folder or its hub page can run code on this host",
            fix=f"read that code, then write allow: [{REMOTE_CODE_WAIVER}]; or leave trust_remote_code out",
        )
    ]


def _remote_code_source(deployment: Deployment) -> str | None:
    if switched_on(deployment, "--trust-remote-code"):
        return _REMOTE_CODE
    for name, values, _ in flag_arguments(deployment):
        if any(key == _REMOTE_CODE and value is True for text in values for key, value in _entries(text)):
            return f"{_REMOTE_CODE} in {name}"
    for place, words in script_words(deployment):
        if any(word.replace("_", "-").partition("=")[0] == "--trust-remote-code" for word in words):
            return f"{_REMOTE_CODE} in {place}"
    for pair in deployment.env:
        if pair.name.upper().endswith("TRUST_REMOTE_CODE") and pair.value.strip().lower() in ("1", "true", "yes", "on"):
            return f"{pair.name}={pair.value}"
    return None
