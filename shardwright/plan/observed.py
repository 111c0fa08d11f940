"""What a start's log says of memory: per rank and for the whole pool. Pure parsing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

_USAGE = re.compile(
    r"Desired GPU memory utilization is \((?P<utilization>[\d.]+), (?P<requested>[\d.]+) GiB\)\. "
    r"Actual usage is (?P<consumed>[\d.]+) GiB for (?:consumed memory \(weights \+ non-torch\)|weight)"
    r".*?(?P<activation>[\d.]+) GiB for peak activation.*?(?P<graphs>[\d.]+) GiB for CUDAGraph memory"
    r".*?Current kv cache memory in use is (?P<in_use>[\d.]+) GiB"
)
_POOL = re.compile(
    r"KV cache size: (?P<tokens>[\d,]+) tokens(?:, Maximum concurrency for (?P<length>[\d,]+) tokens per request: "
    r"(?P<concurrency>[\d.]+)x)?"
)
_GIVEN = re.compile(r"(?:Explicitly|Auto) set \((?P<given>[\d.]+)/[\d.]+\) ?GiB for KV cache")
_TOO_SMALL = re.compile(
    r"max seq len \((?P<length>\d+)\),? \((?P<needed>[\d.]+) GiB KV\s*cache is needed, which is larger than the "
    r"available KV cache memory \((?P<available>[\d.]+) GiB\)"
    r"(?:.*?estimated maximum model length is (?P<longest>\d+))?"
)
_RANK = re.compile(r"\((?:\w*Worker\w*?)?_?(?P<tags>(?:[A-Z]{2,4}\d+_?)+)[^)]*\)")
_TAG = re.compile(r"([A-Z]{2,4})(\d+)")


_ROUNDING_GIB = 0.03


class RankUsage(Struct, frozen=True):
    """One rank's memory in GiB as the engine sums it up. `available_gib`: what it had for the KV cache.

    `stage` and `tensor_rank` come from the worker's tag; 0 where the log has none.
    """

    stage: int
    tensor_rank: int
    available_gib: float
    consumed_gib: float | None = None
    activation_gib: float | None = None
    graphs_gib: float | None = None
    requested_gib: float | None = None
    utilization: float | None = None


class Refusal(Struct, frozen=True):
    """The engine's own refusal: too little memory for one request of max_model_len."""

    max_model_len: int
    needed_gib: float
    available_gib: float
    longest: int | None


class ObservedPool(Struct, frozen=True):
    """Everything of memory in one log; None or empty where the log does not say it."""

    ranks: tuple[RankUsage, ...] = ()
    pool_tokens: int | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    refusal: Refusal | None = None

    def stage_gib(self, stage: int) -> float | None:
        """Memory for the KV cache on the tightest rank of a stage."""
        return min((rank.available_gib for rank in self.ranks if rank.stage == stage), default=None)


def observe(lines: Iterable[str]) -> ObservedPool:
    """Read a log; of several starts in it the last one counts."""
    ranks: dict[tuple[int, int], RankUsage] = {}
    pool: re.Match[str] | None = None
    refusal: Refusal | None = None
    for line in lines:
        usage = _USAGE.search(line)
        given = None if usage else _GIVEN.search(line)
        found = _POOL.search(line)
        small = _TOO_SMALL.search(line)
        if usage or given:
            rank = _usage(line, usage, given)
            ranks[rank.stage, rank.tensor_rank] = rank
        if found:
            pool = found
        if small:
            refusal = _refusal(small)
    return ObservedPool(
        ranks=tuple(ranks[key] for key in sorted(ranks)),
        pool_tokens=_count(pool["tokens"]) if pool else None,
        max_model_len=_count(pool["length"]) if pool and pool["length"] else None,
        max_concurrency=float(pool["concurrency"]) if pool and pool["concurrency"] else None,
        refusal=refusal,
    )


def _usage(line: str, usage: re.Match[str] | None, given: re.Match[str] | None) -> RankUsage:
    stage, tensor_rank = _rank(line)
    if usage is None:
        assert given is not None
        return RankUsage(stage, tensor_rank, float(given["given"]))
    requested, consumed, activation = (float(usage[name]) for name in ("requested", "consumed", "activation"))
    reckoned, in_use = requested - consumed - activation, float(usage["in_use"])
    return RankUsage(
        stage=stage,
        tensor_rank=tensor_rank,
        # The two agree but for rounding, unless "in use" was cut down to what the tightest rank can hold.
        available_gib=in_use if abs(reckoned - in_use) <= _ROUNDING_GIB else round(reckoned, 2),
        consumed_gib=consumed,
        activation_gib=activation,
        graphs_gib=float(usage["graphs"]),
        requested_gib=requested,
        utilization=float(usage["utilization"]),
    )


def _rank(line: str) -> tuple[int, int]:
    tag = _RANK.search(line)
    numbers = dict(_TAG.findall(tag["tags"])) if tag else {}
    return int(numbers.get("PP", 0)), int(numbers.get("TP", 0))


def _refusal(found: re.Match[str]) -> Refusal:
    longest = found["longest"]
    return Refusal(
        int(found["length"]), float(found["needed"]), float(found["available"]), int(longest) if longest else None
    )


def _count(text: str) -> int:
    return int(text.replace(",", ""))
