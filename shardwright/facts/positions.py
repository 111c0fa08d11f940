"""How long a sequence a model's config allows, before the engine's own rules for rope scaling are applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from shardwright.connect.decode import LARGEST

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


class Rope(Struct, frozen=True):
    """One set of rope parameters: its kind, the factor it stretches positions by, and the length it was trained on."""

    kind: str
    factor: float = 1.0
    original: int | None = None


class Positions(Struct, frozen=True):
    """`tokens` as `key` gives it. `sliding_window`: the window that remains where sliding is switched off."""

    tokens: int
    key: str
    ropes: tuple[Rope, ...] = ()
    sliding_window: int | None = None


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
    return Positions(tokens, key, () if scaled else tuple(_ropes(text)), window)


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
