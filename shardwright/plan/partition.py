"""Splits of a model's layers into pipeline stages."""

from __future__ import annotations

import re

_COUNT = re.compile(r"[0-9]+", re.ASCII)


class PartitionError(ValueError):
    """A partition that cannot be used; the text says what is wrong with it."""


def parse_partition(text: str) -> tuple[int, ...]:
    """Layers per stage from `41,37`: positive plain ASCII integers, blanks around them trimmed.

    Stricter than the engine, which accepts `78,0` and `80,-2` and builds a stage without layers.
    """
    counts = []
    for part in text.split(","):
        token = part.strip(" \t")
        if not token:
            raise PartitionError(f"invalid partition string {text!r}: an entry between the commas is empty")
        if not _COUNT.fullmatch(token) or len(token) > 9:
            raise PartitionError(f"invalid partition string {text!r}: {token!r} is not a plain whole number")
        if int(token) == 0:
            raise PartitionError(f"invalid partition {text!r}: a stage with 0 layers")
        counts.append(int(token))
    return tuple(counts)


def default_partition(num_layers: int, stages: int) -> tuple[int, ...]:
    """The engine's own split when none is asked for.

    vLLM distributed/utils.py get_pp_indices: the remainder goes to the stages before the last, from the back.
    """
    base, remainder = divmod(num_layers, stages)
    counts = [base] * stages
    for index in range(2, remainder + 2):
        counts[-index] += 1
    return tuple(counts)
