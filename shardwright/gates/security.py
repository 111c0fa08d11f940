"""Secrets that stand where others can read them, and code that the checkpoint brings along."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import flag_arguments, switched_on
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

REMOTE_CODE_WAIVER = "trust-remote-code"

_SECRET_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
_SECRET_WORDS = (
    "TOKEN",
    "API_KEY",
    "APIKEY",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "CREDENTIALS",
    "ACCESS_KEY",
)
# How the tokens of hubs and hosted services begin, and how many more characters they have at least; those whose start
# ends in a dash, or in _pat_, go on with dashes and underscores too.
_SECRET_STARTS = (
    *(("hf_", 20), ("sk-", 20), ("ghp_", 20), ("gho_", 20), ("ghu_", 20), ("ghs_", 20), ("ghr_", 20)),
    *(("github_pat_", 20), ("nvapi-", 20), ("AKIA", 16), ("xoxb-", 10), ("xoxp-", 10), ("xoxa-", 10)),
)


def check_secrets(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`secrets`: no token stands in the command line or in the container's environment. Never prints a value."""
    findings = []
    for name, values, argument in flag_arguments(deployment):
        variable = _SECRET_FLAGS.get(name)
        if (variable is not None and values) or any(looks_secret(value) for value in values):
            findings.append(_exposed(f"{name} carries a secret ({argument.origin})", variable or "HF_TOKEN"))
    if deployment.engine.command is not None and any(looks_secret(word) for word in deployment.engine.command):
        findings.append(_exposed("engine.command carries a secret", "HF_TOKEN"))
    for pair in deployment.env:
        if _named_secret(pair.name, pair.value) or looks_secret(pair.value):
            findings.append(_exposed(f"env {pair.name} carries a secret ({pair.origin})", pair.name))
    return findings


def looks_secret(text: str) -> bool:
    """Whether a text holds something with the form of a token, wherever it stands in it."""
    for start, least in _SECRET_STARTS:
        dashed = start.endswith(("-", "_pat_"))
        at = text.find(start)
        while at >= 0:
            body = text[at + len(start) :]
            length = next((i for i, c in enumerate(body) if not _in_token(c, dashed)), len(body))
            if length >= least and not text[:at][-1:].isalnum():
                return True
            at = text.find(start, at + len(start))
    return False


def _in_token(character: str, dashed: bool) -> bool:
    return character.isascii() and (character.isalnum() or (dashed and character in "-_"))


def _named_secret(name: str, value: str) -> bool:
    """A variable that is called a secret and holds a value, not a reference such as `${HF_TOKEN}`."""
    upper = name.upper()
    called = any(upper == word or upper.endswith(f"_{word}") for word in _SECRET_WORDS)
    return called and bool(value) and not value.startswith(("$", "<"))


def _exposed(message: str, variable: str) -> Finding:
    return Finding(
        "secrets",
        "reject",
        message,
        why="it would stand in the process list, in docker inspect, in the shell's history and in records",
        fix=f"take it out, write secrets: [{variable}], and export {variable} before deploy start",
    )


def check_remote_code(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`remote-code`: --trust-remote-code only with the named allowance."""
    if not switched_on(deployment, "--trust-remote-code"):
        return []
    if REMOTE_CODE_WAIVER in deployment.waivers:
        text = f"code of the checkpoint runs in the engine, allowed by {REMOTE_CODE_WAIVER}"
        return [Finding("remote-code", "info", text)]
    return [
        Finding(
            "remote-code",
            "reject",
            "trust_remote_code runs Python that the checkpoint brings along",
            why="whoever can change the checkpoint's folder or its hub page can run code on this host",
            fix=f"read that code, then write allow: [{REMOTE_CODE_WAIVER}]; or leave trust_remote_code out",
        )
    ]
