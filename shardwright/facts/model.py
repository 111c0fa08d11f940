"""Facts of a model, read from its config.json after overrides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from shardwright.connect.decode import LARGEST, Section
from shardwright.connect.strict_yaml import load_yaml
from shardwright.errors import DeployError
from shardwright.facts.attention import AttentionFacts, attention_facts
from shardwright.facts.shape import ModelShape, language_config, merge_overrides, model_shape
from shardwright.facts.weights import WeightFacts, declared_weights

SCHEMA = "shardwright/model-v1"

# Architectures whose engine code shares sparse-attention indices between layers (vLLM deepseek_v2.py,
# deepseek_v32/attention.py, hy_v4). DeepSeek-V4 has an index_topk too, but each of its layers computes its own.
INDEX_SHARING_ARCHITECTURES = frozenset({"GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM", "HYV4ForCausalLM"})
# For configs that name the architecture only.
MODEL_TYPES = {
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
SPARSE_MLA_ARCHITECTURES = frozenset({"GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM"})
_MOST_LAYERS = 1000


class IndexRule(Struct, frozen=True):
    """How a model decides which layers compute their own top-k index; see plan.index_sharing for the formula.

    `types` (`full`/`shared` per layer) wins over `pattern` (`S` marks a shared layer), which wins over freq/offset.
    """

    freq: int = 1
    offset: int = 2
    pattern: str | None = None
    types: tuple[str, ...] | None = None


# What the engine's own config class fills in, vLLM transformers_utils/configs/hy_v4.py; it reads no other key.
_HY_V4 = "HYV4ForCausalLM"
_HY_V4_RULE = IndexRule(freq=4, offset=2)
_HY_V4_TOPK = 2048


class ModelFacts(Struct, frozen=True):
    """`source` says where the config was read. Layer counts exclude the MTP layers, which sit on the last stage."""

    source: str
    architecture: str
    model_type: str
    num_layers: int
    num_mtp_layers: int
    num_attention_heads: int | None
    vocab_size: int | None
    index_topk: int | None
    index_rule: IndexRule | None
    quantized: bool
    attention: AttentionFacts | None = None
    shape: ModelShape | None = None
    weights: WeightFacts | None = None
    """Sizes that a bundled model file declares; a checkpoint's headers, where there are any, come first."""

    @property
    def sparse_mla(self) -> bool:
        """Whether the engine needs a sparse-MLA attention backend for it."""
        return self.architecture in SPARSE_MLA_ARCHITECTURES and self.index_topk is not None


def model_facts_from_config(
    config: Mapping[str, Any], source: str, overrides: Mapping[str, Any] | None = None
) -> ModelFacts:
    """Facts of a config.json with `hf_overrides` applied; a nested text_config describes the language model.

    Raises DeployError when a value that decides the topology is missing or of the wrong type.
    """
    merged = merge_overrides(config, overrides)
    text = language_config(merged)
    architectures = merged.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    topk = _integer(text, "index_topk", source)
    if topk is None and architecture == _HY_V4:
        topk = _HY_V4_TOPK
    sparse = architecture in SPARSE_MLA_ARCHITECTURES and topk is not None
    shares = architecture in INDEX_SHARING_ARCHITECTURES
    return ModelFacts(
        source=source,
        architecture=architecture,
        model_type=str(text.get("model_type") or MODEL_TYPES.get(str(architecture), "")),
        num_layers=_required(text, "num_hidden_layers", source),
        num_mtp_layers=_integer(text, "num_nextn_predict_layers", source) or 0,
        num_attention_heads=_integer(text, "num_attention_heads", source),
        vocab_size=_integer(text, "vocab_size", source),
        index_topk=topk,
        index_rule=_index_rule(text, architecture, source) if shares and topk else None,
        quantized="quantization_config" in merged or "quantization_config" in text,
        attention=attention_facts(text, _required(text, "num_hidden_layers", source), sparse),
        shape=model_shape(config, source, overrides),
    )


def read_model_file(file: Path, shown: str, overrides: Mapping[str, Any] | None = None) -> ModelFacts:
    """Facts of a bundled model file: YAML with `schema`, `source` and `config`."""
    document = load_yaml(_text(file, shown), shown)
    data = document.data
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA or not isinstance(data.get("config"), Mapping):
        raise DeployError(f"{shown}: not a model file", fix=f"it needs schema: {SCHEMA} and a config: map")
    facts = model_facts_from_config(data["config"], shown, overrides)
    if "weights" not in data:
        return facts
    return replace(facts, weights=declared_weights(Section(document, ("weights",), data["weights"]), shown))


def read_model_directory(directory: Path, shown: str, overrides: Mapping[str, Any] | None = None) -> ModelFacts | None:
    """Facts of a checkpoint on this host; None where there is no config.json."""
    file = directory / "config.json"
    if not file.is_file():
        return None
    try:
        config = json.loads(_text(file, shown))
    except (ValueError, RecursionError) as error:
        raise DeployError(f"{shown}/config.json is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise DeployError(f"{shown}/config.json is not a JSON object")
    return model_facts_from_config(config, f"{shown}/config.json", overrides)


def _index_rule(config: Mapping[str, Any], architecture: str, source: str) -> IndexRule:
    # A literal null reads as absent: the formula has no meaning for it.
    types = config.get("indexer_types")
    if architecture == _HY_V4 and not isinstance(types, list):
        return _HY_V4_RULE
    pattern = config.get("index_topk_pattern")
    freq = _integer(config, "index_topk_freq", source)
    offset = _integer(config, "index_skip_topk_offset", source)
    if freq is not None and freq < 1:
        raise DeployError(f"{source}: index_topk_freq is {freq}, but it must be at least 1")
    return IndexRule(
        freq=1 if freq is None else freq,
        offset=2 if offset is None else offset,
        pattern=pattern if isinstance(pattern, str) else None,
        types=tuple(str(item) for item in types) if isinstance(types, list) else None,
    )


def _integer(config: Mapping[str, Any], key: str, source: str) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise DeployError(f"{source}: {key} is {value!r}, expected a whole number")
    if abs(value) >= LARGEST:
        raise DeployError(f"{source}: {key} has {len(str(value))} digits, which makes no sense")
    return value


def _required(config: Mapping[str, Any], key: str, source: str) -> int:
    value = _integer(config, key, source)
    if value is None:
        raise DeployError(
            f"{source}: {key} is missing", why="without the number of layers no pipeline split can be checked"
        )
    if not 0 < value <= _MOST_LAYERS:
        raise DeployError(f"{source}: {key} is {value}, expected 1 to {_MOST_LAYERS}")
    return value


def _text(file: Path, shown: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DeployError(f"{shown} is not UTF-8 text") from None
    except OSError as error:
        raise DeployError(f"{shown} cannot be read: {error.strerror}") from None
