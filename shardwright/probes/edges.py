"""The lengths at which an engine changes its way of working, and prompt lengths on both sides of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SHORTEST_PROMPT_TOKENS = 160
"""Room for a chat template, a needle, a question and a decoy in every tokenizer that was looked at."""
_DEFAULT_MAX_LEN = 32_768


@dataclass(frozen=True)
class Edges:
    """What is known of one deployment, all in tokens; None where it is not known or the model has no such edge.

    `block`: KV cache block. `index_topk`: tokens that a sparse indexer keeps. `window`: sliding attention window.
    `chunk`: max_num_batched_tokens, where a prefill is cut. `max_len`: prompt and answer together.
    """

    block: int | None = None
    index_topk: int | None = None
    window: int | None = None
    chunk: int | None = None
    max_len: int | None = None

    def longest_prompt(self, answer_tokens: int) -> int:
        """The longest prompt that leaves room for an answer."""
        return (self.max_len or _DEFAULT_MAX_LEN) - answer_tokens

    def inner(self) -> tuple[int, ...]:
        """All edges but the maximum, rising; the block as its smallest multiple that a needle prompt can meet."""
        block = self.block
        multiple = block * -(-(SHORTEST_PROMPT_TOKENS + 1) // block) if block else None
        found = {edge for edge in (multiple, self.index_topk, self.window, self.chunk) if edge}
        return tuple(sorted(found))


def both_sides(edges: Iterable[int], shortest: int, longest: int) -> tuple[int, ...]:
    """E-1, E and E+1 of each edge, without those that no prompt can have."""
    return tuple(sorted({edge + side for edge in edges for side in (-1, 0, 1) if shortest <= edge + side <= longest}))


def topk_warning(probe: str, lengths: Iterable[int], index_topk: int | None) -> str | None:
    """What a probe cannot see when no prompt is longer than `index_topk`; None where that is no concern."""
    longest = max(lengths, default=0)
    if index_topk is None or longest > index_topk:
        return None
    return (
        f"{probe} prompt {longest} <= index_topk {index_topk}: sparse selection keeps every token, this probe cannot "
        f"detect indexer faults; ask for a length of at least {index_topk + 1}"
    )
