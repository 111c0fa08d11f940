"""How long a sequence a model's config allows, and what the engine makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from shardwright.connect.decode import LARGEST
from shardwright.facts.versions import version_in

# vLLM transformers_utils/model_arch_config_convertor.py derive_max_model_len_and_key: the smallest of them counts.
_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# It wins over all of them.
_OWN_LIMIT = "model_max_length"

# Kinds of rope whose factor the engine does not apply to the positions, vLLM config/model.py _get_and_verify_max_len.
_LONG = "longrope"
_UNSCALED = frozenset({"su", _LONG, "llama3"})
# From 0.30 on it takes the positions of these as scaled by the checkpoint; before, it scaled their original length.
YARN = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
YARN_IS_SCALED = ">=0.30"


class Rope(Struct, frozen=True):
    """One set of rope parameters: its kind, the factor it stretches positions by, and the length it was trained on."""

    kind: str
    factor: float = 1.0
    original: int | None = None


class Positions(Struct, frozen=True):
    """`tokens` as `key` gives it. `sliding_window`: the window that remains where sliding is switched off.

    `original`: what they were before LongRoPE stretched them.
    """

    tokens: int
    key: str
    ropes: tuple[Rope, ...] = ()
    sliding_window: int | None = None
    original: int | None = None


def positions_of(text: Mapping[str, Any]) -> Positions | None:
    """Positions of a (text) config.json; None where it names none, so that the engine's config class decides."""
    found = [(tokens, key) for key in _KEYS if (tokens := _tokens(text, key)) is not None]
    own = _tokens(text, _OWN_LIMIT)
    if own is not None:
        found = [(own, _OWN_LIMIT)]
    if not found:
        return None
    tokens, key = min(found, key=lambda pair: pair[0])
    # Gemma 3 gives positions that are scaled already.
    scaled = "gemma3" in str(text.get("model_type") or "")
    window = None if text.get("use_sliding_window") is False else _tokens(text, "sliding_window")
    original = _tokens(text, "original_max_position_embeddings")
    return Positions(tokens, key, () if scaled else tuple(_ropes(text)), window, original)


def longest_request(positions: Positions, version: str, *, sliding_off: bool) -> tuple[int, str]:
    """The longest request in tokens that the engine takes, and the key of the config that says so."""
    tokens, key = float(positions.tokens), positions.key
    window = positions.sliding_window
    if sliding_off and window is not None and window < tokens:
        tokens, key = float(window), "sliding_window"
    stretched = [tokens]
    for rope in positions.ropes:
        if rope.kind in YARN and not version_in(version, YARN_IS_SCALED):
            stretched.append((rope.original or tokens) * rope.factor)
        elif rope.kind not in _UNSCALED | YARN:
            stretched.append(tokens * rope.factor)
    return int(max(stretched)), key


def unasked_length(positions: Positions, version: str, *, sliding_off: bool) -> int:
    """The max_model_len in tokens that the engine takes where none is asked for.

    The tokenizer's own limit, which may be smaller, is not read.
    """
    if positions.original is not None and any(rope.kind == _LONG for rope in positions.ropes):
        return positions.original
    return longest_request(positions, version, sliding_off=sliding_off)[0]


def _ropes(text: Mapping[str, Any]) -> Iterator[Rope]:
    """Rope parameters under the old and the new name; the new one may hold a set for each type of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        given = text.get(name)
        if not isinstance(given, Mapping):
            continue
        nested = [value for value in given.values() if isinstance(value, Mapping)]
        for parameters in nested or [given]:
            yield Rope(
                kind=str(parameters.get("rope_type") or parameters.get("type") or "default"),
                factor=_factor(parameters.get("factor")),
                original=_tokens(parameters, "original_max_position_embeddings"),
            )


def _factor(value: Any) -> float:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 < value < LARGEST else 1.0


def _tokens(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST else None
