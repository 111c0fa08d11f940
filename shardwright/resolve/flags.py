"""Values of engine flags as a deployment's command line gives them."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.resolve.deployment import Deployment

FITTED_LENGTHS = ("auto", "-1")
"""Values of max_model_len with which the engine takes what its KV pool holds. Without one it takes all positions of the
model, and stops where these do not fit: vLLM config/model.py, v1/core/kv_cache_utils.py get_kv_cache_configs."""


def flag_value(deployment: Deployment, *names: str) -> str | None:
    """The value of an engine flag as text, "" for a bare switch, None where it is absent; the last one counts."""
    found = None
    for argument in deployment.engine_args:
        name, equals, value = argument.tokens[0].partition("=")
        if name in names:
            found = value if equals else (argument.tokens[1] if len(argument.tokens) > 1 else "")
    return found


def kv_cache_dtype(deployment: Deployment, facts: Facts) -> tuple[str, str]:
    """The dtype of the KV cache, and who decides it: `kv_cache_dtype`, or `the checkpoint` where that is `auto`.

    vLLM utils/torch_utils.py get_kv_cache_quant_algo_string (ModelOpt) and layers/attention/attention.py
    (compressed-tensors): a quantised checkpoint that stores scales for its cache turns `auto` into its own format.
    """
    given = flag_value(deployment, "--kv-cache-dtype") or "auto"
    quantisation = facts.shape.quantisation if facts.shape else None
    if given == "auto" and quantisation is not None and quantisation.kv_cache_dtype is not None:
        return quantisation.kv_cache_dtype, "the checkpoint"
    return given, "kv_cache_dtype"
