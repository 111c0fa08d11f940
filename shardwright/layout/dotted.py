"""Entries of a JSON flag that are given one by one, as `--hf-overrides.text_config.rope_theta 1000000`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def dotted_entries(given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """What the parts of one flag say together, as a map: texts that are JSON are read, others stay.

    vLLM utils/argparse_utils.py FlexibleArgumentParser.parse_args. It puts the result behind all other arguments, so
    that it takes the place of a whole `--flag {…}`.
    """
    merged: dict[str, Any] = {}
    for name, value in given:
        *outer, last = name.split(".")[1:]
        place = merged
        for key in outer:
            inner = place.get(key)
            if not isinstance(inner, dict):
                inner = place[key] = {}
            place = inner
        place[last] = _read(value)
    return merged


def _read(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
