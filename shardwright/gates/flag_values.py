"""Whether a flag's value is one that the engine takes: its kind, its choices, its bounds, the keys of its JSON."""

from __future__ import annotations

import json
from typing import Any

from shardwright.errors import UsageError
from shardwright.facts.engine_tables import Flag
from shardwright.resolve.counts import parse_count

_JSON_KINDS = ("json", "config", "json_or_text")


def dotted_problem(name: str, flag: Flag) -> str:
    """What is wrong with `--flag.key`; "" where the engine takes it."""
    if flag.kind not in _JSON_KINDS:
        return f"{flag.name} is not a JSON flag, so it has no parts"
    return _key_problem(flag, [name.split(".")[1].removesuffix("+")])


def value_problem(base: str, values: tuple[str, ...], flag: Flag) -> str:
    """What is wrong with the values of a flag; "" where the engine takes them."""
    if flag.kind in ("switch", "bool"):
        return f"{base} takes no value, but {' '.join(values)!r} is given" if values else ""
    if not values:
        return "" if flag.kind == "optional" else f"{base} needs a value"
    if len(values) > 1 and flag.kind != "list":
        return f"{base} takes one value, but {len(values)} are given"
    for value in values:
        problem = _one_value(base, value, flag)
        if problem:
            return problem
    return ""


def bounds_text(flag: Flag) -> str:
    """`at least 1`, `above 0 and at most 1`; "" where any number goes."""
    words = (("at least", flag.low), ("above", flag.above), ("at most", flag.high), ("below", flag.below))
    return " and ".join(f"{word} {bound:g}" for word, bound in words if bound is not None)


def _one_value(base: str, value: str, flag: Flag) -> str:
    if flag.optional and value in ("None", ""):
        return ""
    if flag.choices:
        text = value.lower().replace("-", "_") if flag.folds else value
        parts = text.split(",") if flag.kind == "list" else [text]
        wrong = [part for part in parts if part not in flag.choices]
        return f"{base} {wrong[0]!r} is not one of {', '.join(flag.choices)}" if wrong else ""
    if "int" in (flag.kind, flag.item):
        return _number(base, value, flag, _whole(value), "a whole number")
    if flag.kind in ("size", "size_or_auto"):
        if flag.kind == "size_or_auto" and value.strip().lower() == "auto":
            return ""
        return _number(base, value, flag, _size(value), "a number such as 8192 or 8k")
    if flag.kind == "float":
        return _number(base, value, flag, _decimal(value), "a number")
    return _json_problem(base, value, flag) if flag.kind in ("json", "config") else ""


def _number(base: str, value: str, flag: Flag, number: float | None, expected: str) -> str:
    if number is None:
        return f"{base} {value!r} is not {expected}"
    fits = (
        (flag.low is None or number >= flag.low)
        and (flag.above is None or number > flag.above)
        and (flag.high is None or number <= flag.high)
        and (flag.below is None or number < flag.below)
    )
    return "" if fits else f"{base} {value} must be {bounds_text(flag)}"


def _whole(value: str) -> int | None:
    digits = value.strip().lstrip("+-")
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else None


def _size(value: str) -> int | None:
    try:
        return parse_count(value.strip())
    except UsageError:
        return None


def _decimal(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _json_problem(base: str, value: str, flag: Flag) -> str:
    try:
        found: Any = json.loads(value)
    except ValueError:
        return f"{base} {value!r} is not valid JSON"
    if flag.kind == "config" and not isinstance(found, dict):
        return f"{base} {value!r} is not a JSON object"
    return _key_problem(flag, list(found)) if isinstance(found, dict) else ""


def _key_problem(flag: Flag, keys: list[str]) -> str:
    """A key that the flag's config class does not have; such classes take no others."""
    unknown = [key for key in keys if key not in flag.keys] if flag.keys else []
    if not unknown:
        return ""
    from difflib import get_close_matches

    near = get_close_matches(unknown[0], flag.keys)
    return f"{flag.name} has no key {unknown[0]!r}" + (f", did you mean {near[0]!r}?" if near else "")
