"""`speculative`: the method is one of this version, and its settings are such as the engine takes and uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.facts.facts import Facts
from shardwright.facts.model_support import drafts_for_itself
from shardwright.gates.finding import Finding
from shardwright.gates.options import number_of, switched_on
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment, Speculation

GATE = "speculative"

# Methods whose draft is a checkpoint of its own, vLLM config/speculative.py SpeculativeConfig.__post_init__.
_NEED_MODEL = frozenset({"eagle", "eagle3", "dflash", "draft_model", "medusa", "mlp_speculator", "custom_class"})
# Its checkpoints carry the layers of DSpark in the place of MTP layers.
_DSPARK_TYPE = "deepseek_v41"
# Methods that cannot run with async scheduling, vLLM config/vllm.py; the engine raises where both are asked for.
_NOT_ASYNC = frozenset({"ngram", "suffix", "medusa", "mlp_speculator", "custom_class"})

# Settings that only some methods read, by how their names begin; the engine takes them with any other and says nothing.
_READ_BY = (("prompt_lookup_", ("ngram", "ngram_gpu")), ("suffix_decoding_", ("suffix",)))
# Settings that the engine refuses with any other method.
_ONLY_WITH = {"dspark_draft_topk": "dspark", "index_share_for_mtp_iteration": "mtp"}


def check_draft_settings(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    speculation = deployment.speculation
    if not speculation.active or deployment.engine.command is not None:
        return []
    return [
        *_method(deployment, facts),
        *_options(speculation),
        *_draft_size(deployment, speculation),
        *_no_layers(deployment, facts),
        *_steps(speculation, facts),
        *_schedule(deployment, speculation),
    ]


def _method(deployment: Deployment, facts: Facts) -> list[Finding]:
    speculation, table = deployment.speculation, facts.engine.table if facts.engine else None
    known = next((flag.choices for flag in table.flags if flag.name == "--spec-method"), ()) if table else ()
    if known and speculation.method not in known:
        from difflib import get_close_matches

        near = get_close_matches(speculation.method, known)
        text = f"vLLM {deployment.engine.vllm} has no speculative method {speculation.method!r} ({speculation.origin})"
        fix = f"did you mean {near[0]}? Or SPEC_METHOD=none" if near else f"SPEC_METHOD=none, or one of {_list(known)}"
        return [Finding(GATE, "reject", text, why="the engine refuses its speculative config", fix=fix)]
    if speculation.model is None and speculation.method in _NEED_MODEL:
        text = f"{speculation.method} drafts with a checkpoint of its own, and speculative.model names none"
        why = "the engine ends in 'num_speculative_tokens was provided but without speculative model'"
        return [Finding(GATE, "info", text, why=why, fix="write speculative: {model: PATH OR HUB ID}")]
    return []


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(name for name in names if not name.endswith("_mtp"))


def _options(speculation: Speculation) -> list[Finding]:
    given, findings = dict(speculation.options), []
    for start, methods in _READ_BY:
        idle = [key for key in given if key.startswith(start)]
        if idle and speculation.method not in methods:
            text = f"speculative.{idle[0]} means nothing to {speculation.method}, only to {' and '.join(methods)}"
            findings.append(Finding(GATE, "warn", text, why="the engine ignores it", fix=f"remove {', '.join(idle)}"))
    for key, method in _ONLY_WITH.items():
        if given.get(key) is not None and speculation.family != method:
            text = f"speculative.{key} goes with {method} only, not with {speculation.method}"
            findings.append(Finding(GATE, "reject", text, why="the engine raises", fix=f"remove {key}"))
    return findings + _lookup(given)


def _lookup(given: Mapping[str, Any]) -> list[Finding]:
    least, most = given.get("prompt_lookup_min"), given.get("prompt_lookup_max")
    if least is None or most is None or least <= most:
        return []
    text = f"speculative.prompt_lookup_min {least} is above prompt_lookup_max {most}"
    return [Finding(GATE, "reject", text, why="the engine raises", fix="exchange the two")]


def _draft_size(deployment: Deployment, speculation: Speculation) -> list[Finding]:
    given, tensor = dict(speculation.options), deployment.parallel.tensor
    findings = []
    draft = given.get("draft_tensor_parallel_size")
    if draft is not None and draft not in (1, tensor):
        text = f"speculative.draft_tensor_parallel_size {draft} is neither 1 nor TP={tensor}"
        why = "the engine raises 'cannot be other value than 1 or target model tensor_parallel_size'"
        findings.append(Finding(GATE, "reject", text, why=why, fix=f"write 1 or {tensor}, or leave it out"))
    length, target = given.get("max_model_len"), number_of(deployment, "--max-model-len", 0)
    if length is not None and target and length > target:
        text = f"speculative.max_model_len {length} is above the target's {target}"
        findings.append(Finding(GATE, "reject", text, why="the engine raises", fix="leave it out"))
    return findings


def _no_layers(deployment: Deployment, facts: Facts) -> list[Finding]:
    """The model drafts for itself only where it has MTP layers that the engine knows."""
    speculation, model = deployment.speculation, facts.model
    if speculation.family != "mtp" or speculation.model is not None or model is None:
        return []
    if facts.shape is not None and facts.shape.mtp_layers == 0:
        text = f"{speculation.method} drafts with the model's own MTP layers, and the config says it has none"
        why = "num_nextn_predict_layers is 0; the engine ends in a division by it, or finds no weights"
        return [Finding(GATE, "reject", text, why=why, fix="SPEC_METHOD=none, or a draft model", evidence=model.source)]
    # A model with MTP layers of a type that was not read may be the image's own.
    own = model.num_mtp_layers > 0 and model.model_type != _DSPARK_TYPE
    if own or drafts_for_itself(model.architecture, model.model_type, deployment.engine.vllm) is not False:
        return []
    text = f"{speculation.method} drafts with the model's own MTP layers, and {model.model_type} has none"
    why = "the engine raises \"Unsupported speculative method: 'mtp'\""
    fix = "SPEC_METHOD=dspark" if model.model_type == _DSPARK_TYPE else "SPEC_METHOD=none, or a draft model"
    return [Finding(GATE, "reject", text, why=why, fix=fix, evidence=model.source)]


def _schedule(deployment: Deployment, speculation: Speculation) -> list[Finding]:
    """Settings that fix how batches are scheduled, which not every method goes with."""
    given, findings = dict(speculation.options), []
    if given.get("enable_adaptive_verification") is True and deployment.parallel.pipeline > 1:
        text = f"speculative.enable_adaptive_verification does not go with PP={deployment.parallel.pipeline}"
        why = "the engine raises 'Adaptive verification is not currently compatible with pipeline parallelism'"
        findings.append(Finding(GATE, "reject", text, why=why, fix="remove enable_adaptive_verification"))
    if switched_on(deployment, "--async-scheduling"):
        padded = given.get("disable_padded_drafter_batch") is not True
        culprit = "speculative.disable_padded_drafter_batch" if not padded else speculation.method
        if speculation.family in _NOT_ASYNC or not padded:
            text = f"{culprit} does not go with async scheduling, which the layout asks for"
            why = "left alone, the engine would switch async scheduling off; asked for, it raises"
            findings.append(Finding(GATE, "reject", text, why=why, fix="leave async_scheduling out"))
    return findings


def _steps(speculation: Speculation, facts: Facts) -> list[Finding]:
    """An MTP module of several layers predicts that many tokens at once, or a multiple of it."""
    layers = facts.model.num_mtp_layers if facts.model else None
    if speculation.family != "mtp" or not layers:
        return []
    tokens = speculation.draft_tokens
    fitting = tokens // layers * layers
    if fitting in (0, tokens):
        return []
    text = f"{tokens} draft tokens are no multiple of the model's {layers} MTP layers"
    why = f"the engine raises 'num_speculative_tokens:{tokens} must be divisible by n_predict={layers}'"
    return [Finding(GATE, "reject", text, why=why, fix=f"num_speculative_tokens: {fitting}")]
