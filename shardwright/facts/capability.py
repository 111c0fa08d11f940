"""Compute capabilities of NVIDIA cards, comparable."""

from __future__ import annotations

import re

from msgspec import Struct

_TEXT = re.compile(r"(\d{1,3})(?:\.(\d{1,2})?)?", re.ASCII)


def capability_numbers(capability: str) -> tuple[int, int] | None:
    """`9.0` as (9, 0); None where it does not read."""
    found = _TEXT.fullmatch(capability)
    return (int(found[1]), int(found[2] or 0)) if found else None


class Cards(Struct, frozen=True):
    """Compute capabilities from `first` to `last`, both included; without a last one all that follow."""

    first: str
    last: str | None = None

    def hold(self, capability: str) -> bool:
        """Whether a card is one of them; True for a capability that does not read, which nothing is known of."""
        asked, first = capability_numbers(capability), capability_numbers(self.first)
        last = capability_numbers(self.last) if self.last else None
        if asked is None or first is None:
            return True
        return first <= asked and (last is None or asked <= last)
