"""`quantisation`: the method of the weights is the one that the layout names, and the cards have kernels for it."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.kernels import QUANTISATION
from shardwright.facts.versions import READ, version_in
from shardwright.gates.capabilities import capabilities_of
from shardwright.gates.finding import Finding
from shardwright.gates.options import value_of
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "quantisation"

# Names of one method; of those of one line any may be asked for where the checkpoint has another.
_ONE_METHOD = (
    ("awq", "awq_marlin", "auto_awq"),
    ("gptq", "gptq_marlin", "auto_gptq", "marlin"),
    ("fp8", "deepseek_v4_fp8"),
    ("mxfp4", "gpt_oss_mxfp4"),
    ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "mxfp8"),
)
# Methods whose checkpoints the engine takes to hold scales of the KV cache.
_CACHE_SCALES = frozenset({"fp8", "modelopt"})
_E5M2 = "fp8_e5m2"
# Methods that take over checkpoints of others.
_TAKE_OVER = frozenset({"humming", "moe_wna16"})


def check_quantisation(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """Silent on methods and versions that were not read."""
    if deployment.platform != "cuda" or not version_in(deployment.engine.vllm, READ):
        return []
    asked = (value_of(deployment, "--quantization") or "").lower()
    quant = facts.shape.quantisation if facts.shape else None
    stored = quant.method.lower() if quant is not None else asked
    return [
        *_other_method(asked, stored, facts),
        *_old_cards(deployment, facts, asked or stored),
        *_cache_format(deployment, facts, asked or stored),
    ]


def _other_method(asked: str, stored: str, facts: Facts) -> list[Finding]:
    wanted, given = _family(asked), _family(stored)
    if not wanted or not given or wanted == given or asked in _TAKE_OVER:
        return []
    return [
        Finding(
            GATE,
            "reject",
            f"quantization {asked} is asked for, and the checkpoint is quantised by {stored}",
            why="the engine raises 'Quantization method specified in the model config does not match'",
            fix="leave serve.quantization out: the engine reads it from the checkpoint",
            evidence=facts.shape.source if facts.shape else "",
        )
    ]


def _old_cards(deployment: Deployment, facts: Facts, method: str) -> list[Finding]:
    cards = QUANTISATION.get(_family(method))
    capabilities, source = capabilities_of(deployment, facts)
    old = [capability for capability in capabilities if cards is not None and not cards.hold(capability)]
    if cards is None or not old:
        return []
    text = f"quantisation by {method} needs compute capability {cards.first}, and {source} have {', '.join(old)}"
    why = "the engine raises 'is not supported for the current GPU. Minimum capability'"
    return [Finding(GATE, "reject", text, why=why, fix="other cards, or a checkpoint that they compute with")]


def _cache_format(deployment: Deployment, facts: Facts, method: str) -> list[Finding]:
    """A checkpoint that may hold scales of an FP8 cache means e4m3 by them, vLLM layers/attention/attention.py."""
    quant = facts.shape.quantisation if facts.shape else None
    scaled = _family(method) in _CACHE_SCALES or (quant is not None and quant.kv_cache_dtype is not None)
    if not scaled or value_of(deployment, "--kv-cache-dtype") != _E5M2:
        return []
    text = f"kv_cache_dtype {_E5M2} does not go with weights quantised by {method}"
    why = "the engine raises 'fp8_e5m2 kv-cache is not supported with fp8 checkpoints'"
    return [Finding(GATE, "reject", text, why=why, fix="write serve: {kv_cache_dtype: fp8} or auto")]


def _family(method: str) -> str:
    return next((names[0] for names in _ONE_METHOD if method in names), method if method in QUANTISATION else "")
