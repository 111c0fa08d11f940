"""Comparison of engine versions such as `0.30.0`, and of ranges such as `>=0.30,<0.33`."""

from __future__ import annotations

import re
from functools import lru_cache

from shardwright.errors import UsageError

READ = ">=0.28,<0.34"
"""The versions whose sources the tables of this room were read in; of others they say nothing."""

_VERSION = re.compile(r"^(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:(?:[.+-]|a|b|rc|dev).*)?$", re.ASCII)
_CLAUSE = re.compile(r"^(<=|>=|==|<|>)\s*(\d+\.\d+(?:\.\d+)?)$", re.ASCII)


@lru_cache(maxsize=256)
def parse_version(text: str) -> tuple[int, int, int]:
    """`0.30.0`, `0.30` or `0.30.0+cpu` as (major, minor, patch); UsageError when it is none of these."""
    match = _VERSION.match(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not an engine version", fix="write it like 0.30.0")
    return int(match[1]), int(match[2]), int(match[3] or 0)


@lru_cache(maxsize=1024)
def version_in(version: str, ranges: str) -> bool:
    """Whether `version` satisfies every comma-separated clause of `ranges`; an empty string admits all."""
    have = parse_version(version)
    return all(_satisfies(have, clause.strip()) for clause in ranges.split(",") if clause.strip())


def _satisfies(have: tuple[int, int, int], clause: str) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        raise UsageError(f"{clause!r} is not a version range", fix="write it like >=0.30,<0.33")
    want = parse_version(match[2])
    return {
        "<": have < want,
        "<=": have <= want,
        ">": have > want,
        ">=": have >= want,
        "==": have == want,
    }[match[1]]
