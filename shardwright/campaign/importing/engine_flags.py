"""The words of `vllm serve` as a layout's `serve:`, `parallel:`, `speculative:` and `model:`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright.campaign.importing.shell import Remark, Word
from shardwright.campaign.importing.shown import shown
from shardwright.errors import UsageError
from shardwright.layout.speculative import OPTIONS

_NUMBER = re.compile(r"-[0-9.]")
_JSON_START = ("{", "[")
_PARALLEL = {"tensor_parallel_size": "tensor", "pipeline_parallel_size": "pipeline"}
_SPECULATIVE = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}


@dataclass
class Served:
    """What the engine was asked for. `port` and `api_key` are the launcher's and the secret store's."""

    model: Word | None = None
    model_flag: bool = False
    revision: str | None = None
    port: str | None = None
    host: str | None = None
    api_key: Word | None = None
    parallel: dict[str, Any] = field(default_factory=dict)
    serve: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)


def read_serve(words: Sequence[Word], aliases: Mapping[str, str]) -> Served:
    """Read the words after `vllm serve`. `aliases`: short names of flags to their full ones.

    Raises UsageError for a short flag that nobody knows.
    """
    found = Served()
    at = 0
    while at < len(words):
        word = words[at]
        if word.text in ("$@", "$*"):
            text = f"{word.text} passes on what the script itself is given, and is left out"
            found.remarks.append(Remark(word.line, text, "nobody knows here what that is", "write it in serve:"))
            at += 1
        elif not word.text.startswith("-"):
            if found.model is not None:
                raise UsageError(
                    f"line {word.line}: {shown(word.text)!r} is neither a flag nor the value of one",
                    why="a word between the flags ends what the engine reads",
                    fix="quote values that hold blanks",
                )
            found.model = word
            at += 1
        else:
            at = _flag(found, words, at, aliases)
    return found


def _flag(found: Served, words: Sequence[Word], at: int, aliases: Mapping[str, str]) -> int:
    word = words[at]
    name, equals, inline = word.text.partition("=")
    if not name.startswith("--") or name == "--":
        short = re.fullmatch(r"(-O|-q)(.+)", name)
        if short is not None:
            name, equals, inline = short[1], "=", short[2].removeprefix("=")
        if name not in aliases:
            raise UsageError(f"line {word.line}: {name} is no short flag of the engine", fix="write its full name")
        name = aliases[name]
    end = at + 1
    values = [Word(inline, word.line, word.unknown)] if equals else []
    while not equals and end < len(words) and _is_value(words[end].text):
        values.append(words[end])
        end += 1
    head, dot, part = name[2:].partition(".")
    _take(found, head.replace("-", "_") + dot + part, values, word)
    return end


def _is_value(text: str) -> bool:
    return text not in ("$@", "$*") and (not text.startswith("-") or _NUMBER.match(text) is not None)


def _take(found: Served, key: str, values: Sequence[Word], flag: Word) -> None:
    head, _, part = key.partition(".")
    if not values:
        _serve(found, key, values, flag)
    elif key == "model":
        found.model, found.model_flag = values[-1], True
    elif key == "api_key":
        found.api_key = values[-1]
    elif key in ("revision", "port", "host"):
        setattr(found, key, values[-1].text)
    elif key in _PARALLEL:
        found.parallel[_PARALLEL[key]] = scalar(values[-1].text)
    elif key in _SPECULATIVE:
        found.speculative[_SPECULATIVE[key]] = scalar(values[-1].text)
    elif head == "speculative_config":
        _speculate(found, part, values[-1])
    else:
        _serve(found, key, values, flag)


def _serve(found: Served, key: str, values: Sequence[Word], flag: Word) -> None:
    on = not key.startswith("no_") or bool(values)
    name = key if on else key.removeprefix("no_")
    if name in found.serve:
        text, why = f"--{name.replace('_', '-')} is given twice", "the engine keeps the last one"
        found.remarks.append(Remark(flag.line, text, why, "remove the other one"))
        found.serve.pop(name)
    if not values:
        found.serve[name] = on
    elif len(values) == 1:
        found.serve[name] = _value(values[0])
    else:
        found.serve[name] = [_value(value) for value in values]


def _speculate(found: Served, part: str, value: Word) -> None:
    given = {part: _value(value)} if part else _value(value)
    if not isinstance(given, Mapping):
        raise UsageError(f"line {value.line}: --speculative-config is not a JSON object", fix="quote it once, in ' '")
    for key, item in given.items():
        if key in ("method", "model", "num_speculative_tokens") or key in OPTIONS:
            found.speculative[key] = item
        else:
            text = f"the key {key!r} of --speculative-config cannot be said in a layout and is left out"
            found.remarks.append(Remark(value.line, text, "the engine would speculate without it", "look it up"))


def _value(word: Word) -> Any:
    """A JSON object or list as such, a number as it is written, anything else as text."""
    if word.text.startswith(_JSON_START):
        try:
            return json.loads(word.text)
        except (ValueError, RecursionError):
            return word.text
    return scalar(word.text)


class Written(str):
    """A number that stands in the layout as it was written."""


def scalar(text: str) -> Any:
    return Written(text) if re.fullmatch(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?", text, re.ASCII) else text
