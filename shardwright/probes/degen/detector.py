"""Find, token by token, that the tail of a text repeats exactly.

A tail repeats with period p when each of its tokens equals the one p places earlier. The detector keeps, for each
period, where the current repetition began, and touches only the periods that the newest token agrees with: those are
the distances to earlier equal tokens in the window. Cost per token does not grow with the text; memory is the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

MAX_PERIOD_TOKENS = 512
MIN_COVERED_TOKENS = 200
MIN_REPEATS = 3


@dataclass(frozen=True)
class Loop:
    """An exact loop: the last `covered_tokens` of the first `at_token` tokens repeat with `period_tokens`."""

    period_tokens: int
    covered_tokens: int
    at_token: int


class LoopDetector:
    """Incremental and exact: `push` returns a Loop at the first token that completes one, and None before.

    A loop with period p counts once it covers max(min_covered, min_repeats * p) tokens. With the defaults, natural
    text, code, tables and number rows do not reach that, and no loop of 1 to 512 tokens is missed. Tokens may be ids
    or words; they need only compare and hash.
    """

    def __init__(
        self,
        max_period: int = MAX_PERIOD_TOKENS,
        min_covered: int = MIN_COVERED_TOKENS,
        min_repeats: int = MIN_REPEATS,
    ) -> None:
        if max_period < 1 or min_covered < 1 or min_repeats < 2:
            raise ValueError("a loop needs a period of 1 or more, seen at least twice")
        self._max_period = max_period
        self._need = [max(min_covered, min_repeats * period) for period in range(max_period + 1)]
        self._window: deque[Hashable] = deque()
        self._places: dict[Hashable, deque[int]] = {}
        self._began_at = [0] * (max_period + 1)
        self._last_at = [-2] * (max_period + 1)
        self._count = 0

    @property
    def tokens(self) -> int:
        """How many tokens were pushed."""
        return self._count

    def push(self, token: Hashable) -> Loop | None:
        """Take one token; returns the loop of the smallest period that it completes, if any."""
        now = self._count
        found = None
        places = self._places.setdefault(token, deque())
        for place in reversed(places):
            period = now - place
            if self._last_at[period] != now - 1:
                self._began_at[period] = now
            self._last_at[period] = now
            covered = now - self._began_at[period] + 1 + period
            if found is None and covered >= self._need[period]:
                found = Loop(period, covered, now + 1)
        places.append(now)
        self._window.append(token)
        if len(self._window) > self._max_period:
            self._forget(self._window.popleft())
        self._count += 1
        return found

    def push_all(self, tokens: Iterable[Hashable]) -> Loop | None:
        """Take tokens until one completes a loop."""
        for token in tokens:
            loop = self.push(token)
            if loop is not None:
                return loop
        return None

    def _forget(self, token: Hashable) -> None:
        places = self._places[token]
        places.popleft()
        if not places:
            del self._places[token]
