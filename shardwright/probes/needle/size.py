"""Make a prompt of an exact number of tokens in few calls of a tokenizer that is only known from outside."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from shardwright.errors import DeployError, ExitCode

Prompt = TypeVar("Prompt")

MAX_CALLS = 8
_FIRST_SENTENCES = 16
_SPARE_TOKENS = 12
_MOST_PADS = 60


class SizingError(DeployError):
    """No prompt of the wanted length was found: the harness failed, not the model."""


def fit_prompt(
    build: Callable[[int, int], Prompt], count: Callable[[Prompt], int], target_tokens: int
) -> tuple[Prompt, int]:
    """The prompt of exactly `target_tokens`, from `build(sentences, pad words)` measured by `count`, and the calls.

    Measure the fixed part and a few sentences, jump by the mean cost of a sentence, correct, fill up with single words:
    at most 8 calls. What comes out depends on the tokenizer alone, so two servers of one model are asked the same.
    Raises SizingError where no number of words gives the exact length.
    """
    sentences, pads = 0, 0
    fixed: int | None = None
    mean: float | None = None
    tokens = bare = 0
    for call in range(1, MAX_CALLS + 1):
        prompt = build(sentences, pads)
        tokens = count(prompt)
        missing = target_tokens - tokens
        if missing == 0:
            return prompt, call
        if fixed is None:
            fixed = tokens
        elif pads == 0 and sentences and tokens > fixed:
            mean = (tokens - fixed) / sentences
        if pads == 0:
            bare = tokens
        cost = (tokens - bare) / pads if pads and tokens > bare else 1.0
        step = round(missing / cost) or (1 if missing > 0 else -1)
        if 0 <= pads + step <= _MOST_PADS:
            pads += step
        elif mean is None:
            if missing < 0 or sentences:
                break
            sentences = min(_FIRST_SENTENCES, missing // 4)
        else:
            wanted = sentences + math.floor((pads + missing - _SPARE_TOKENS) / mean)
            if wanted == sentences:
                wanted -= 1
            if wanted < 0:
                break
            sentences, pads = wanted, 0
    raise SizingError(
        f"no prompt of exactly {target_tokens} tokens was found",
        why=f"the nearest one has {tokens} tokens"
        if fixed is None or fixed <= target_tokens
        else f"the question alone has {fixed}",
        fix="ask for a longer length",
        code=ExitCode.HARNESS,
    )
