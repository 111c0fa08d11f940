"""What the stock engine can do with a model, by its name: compute in half, draft for itself, split it into stages."""

from __future__ import annotations

from shardwright.facts.versions import READ, version_in

# Of which models it makes a draft: vLLM config/speculative.py SpeculativeConfig.hf_config_override, all that it names
# in these versions; but for DeepSeek-V4.1, whose layers are those of DSpark.
_MTP_TYPES = frozenset(
    (
        "bailing_hybrid",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots3_note",
        "ernie4_5_moe",
        "exaone_moe",
        "glm5_next",
        "glm_moe_dsa",
        "hy_v3",
        "hy_v4",
        "inkling_model",
        "kimi_k3",
        "longcat_flash",
        "longcat_flash_ngram",
        "nemotron_h",
        "nemotron_h_puzzle",
        "pangu_ultra_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp",
        "qwen4_exp_text",
        "step3p5",
        "step3p7",
        "step5",
    )
)
_MTP_ARCHITECTURES = frozenset(
    (
        "BailingMoeV3ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "MiMoForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MistralLarge3ForCausalLM",
        "Step3p5ForCausalLM",
    )
)
# Wrappers of several models: their own type decides, not that of the language model.
_WRAPPER = "ForConditionalGeneration"

# Generative models whose class lacks the SupportsPP interface in all of these versions, vLLM registry.py and the model
# files; the last two declare it and have no make_empty_intermediate_tensors.
_ONE_STAGE = frozenset(
    (
        "AriaForConditionalGeneration",
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "IQuestLoopCoderForCausalLM",
        "Idefics3ForConditionalGeneration",
        "Mamba2ForCausalLM",
        "NemotronH_Nano_VL_V2",
        "PaddleOCRVLForConditionalGeneration",
        "Phi4MMForCausalLM",
        "SmolVLMForConditionalGeneration",
        "WhisperForConditionalGeneration",
        "Zamba2ForCausalLM",
        "Glm5NextForCausalLM",
        "Glm5NextForConditionalGeneration",
    )
)


# Models whose numbers overflow in float16, vLLM config/model.py _FLOAT16_NOT_SUPPORTED_MODELS in all these versions.
_NOT_IN_HALF = frozenset(("gemma2", "gemma3", "gemma3_text", "glm4"))


def computes_in_half(model_type: str, version: str) -> bool | None:
    """Whether the engine takes float16 for a model; None for a version that was not read."""
    return model_type not in _NOT_IN_HALF if version_in(version, READ) else None


def drafts_for_itself(architecture: str, model_type: str, version: str) -> bool | None:
    """Whether `method: mtp` without a draft model is possible; None where the model or the version is not known."""
    if model_type in _MTP_TYPES or architecture in _MTP_ARCHITECTURES:
        return True
    if not model_type or architecture.endswith(_WRAPPER) or not version_in(version, READ):
        return None
    return False


def splits_into_stages(architecture: str, version: str) -> bool | None:
    """Whether pipeline parallelism is possible; None for a version that was not read."""
    return architecture not in _ONE_STAGE if version_in(version, READ) else None
