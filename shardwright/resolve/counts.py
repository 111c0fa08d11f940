"""Whole numbers as the engine's command line reads them."""

from __future__ import annotations

from shardwright.connect.decode import LARGEST
from shardwright.errors import UsageError

_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_count(text: str | None) -> int | None:
    """A whole number as the engine reads it: `1k` is 1,000, `1K` is 1,024, `25.6k` is 25,600. UsageError otherwise."""
    if text is None:
        return None
    scale = _MULTIPLES.get(text[-1:]) or _BINARY.get(text[-1:]) or 1
    number = text[:-1] if scale > 1 else text
    try:
        count = int(float(number) * scale) if "." in number and scale in _MULTIPLES.values() else int(number) * scale
    except (ValueError, OverflowError):
        count = LARGEST
    if abs(count) >= LARGEST:
        raise UsageError(f"{text!r} is not a whole number such as 4096 or 32k")
    return count
