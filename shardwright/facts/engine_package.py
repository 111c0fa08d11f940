"""What lies in the engine's package, whichever version it is of."""

from __future__ import annotations

ENGINE_NAMES = frozenset(
    (
        *("__init__", "_custom_ops", "attention", "compilation", "config", "distributed", "engine", "entrypoints"),
        *("env_override", "envs", "executor", "inputs", "kernels", "logger", "lora", "model_executor", "models"),
        *("model_inspection", "multimodal", "outputs", "parser", "platforms", "plugins", "ray", "reasoning"),
        *("renderers", "sampling_params", "sequence", "spec_decode", "tokenizers", "tool_parsers", "worker"),
        *("transformers_utils", "triton_utils", "utils", "v1", "version"),
    )
)
"""Modules and folders directly below it."""
