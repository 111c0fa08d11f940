"""Parsers of tool calls and of reasoning that fit a model, by the model_type of its config."""

from __future__ import annotations

# The parsers that bear the model's name; for GLM with shared indices those that its field report serves with. A
# suggestion, not a rule; a test holds that the engine has them.
USUAL = {
    "deepseek_v4": ("deepseek_v4", "deepseek_v4"),
    "glm4_moe": ("glm45", "glm45"),
    "glm_moe_dsa": ("glm47", "glm45"),
    "gpt_oss": ("openai", "openai_gptoss"),
    "kimi_k2": ("kimi_k2", "kimi_k2"),
    "minimax_m2": ("minimax_m2", "minimax_m2"),
    "seed_oss": ("seed_oss", "seed_oss"),
}


def usual_parsers(model_type: str) -> tuple[str, str] | None:
    """The usual parser of tool calls and that of reasoning; None where none is known."""
    return USUAL.get(model_type)
