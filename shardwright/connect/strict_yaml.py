"""YAML read through its node tree: duplicate keys are errors, few scalars are converted, every value keeps its place.

Only `true`, `false`, `null`, plain decimal integers and plain decimals are converted; `no`, `12:30:45` and `1_000`
stay text. The source text of each scalar is kept, so that a flag or variable can be passed on verbatim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml
from msgspec import Struct, field

from shardwright.errors import UsageError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"^[-+]?(0|[1-9][0-9]*)$", re.ASCII)
_DECIMAL = re.compile(r"^[-+]?[0-9]+\.[0-9]+([eE][-+]?[0-9]+)?$", re.ASCII)
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None, "": None}
_QUOTED = ("'", '"', "|", ">")
_MAX_DEPTH = 64
_MAX_VALUES = 20_000
_STANDARD_TAG = "tag:yaml.org,2002:"

Path = tuple[str, ...]


class Mark(Struct, frozen=True):
    """A place in a file; lines and columns count from one."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Document(Struct, frozen=True):
    """Plain data with the place and, for scalars, the source text of every path."""

    data: Any
    marks: Mapping[Path, object] = field(default_factory=dict)
    raw: Mapping[Path, str] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """The place of `path`, or of its nearest ancestor that has one."""
        for length in range(len(path), -1, -1):
            mark = self.marks.get(path[:length])
            if mark is not None:
                return str(mark)
        return ""


def load_yaml(text: str, file: str) -> Document:
    """Parse one YAML document; `file` is the name that errors show. Raises UsageError with file and line."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(
            f"{file}:{line}: not valid YAML: {error.problem or error.context}", why=_snippet(text, line)
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not valid YAML: {_one_line(error)}") from None
    if node is None:
        return Document({}, {(): Mark(file, 1, 1)})
    marks: dict[Path, object] = {}
    raw: dict[Path, str] = {}
    data = _construct(node, (), file, marks, raw)
    return Document(data, marks, raw)


def _construct(node: Any, path: Path, file: str, marks: dict[Path, object], raw: dict[Path, str]) -> Any:
    mark = Mark(file, node.start_mark.line + 1, node.start_mark.column + 1)
    marks[path] = mark
    if len(path) > _MAX_DEPTH:
        raise UsageError(f"{mark}: nested more than {_MAX_DEPTH} levels deep")
    if len(marks) > _MAX_VALUES:
        # A few lines of aliases can stand for billions of values.
        raise UsageError(f"{mark}: more than {_MAX_VALUES} values, aliases counted as often as they are used")
    if not node.tag.startswith(_STANDARD_TAG) or "/" in node.tag:
        raise UsageError(f"{mark}: {'.'.join(path)}: the tag {node.tag} has no meaning here", fix="remove the tag")
    if isinstance(node, yaml.ScalarNode):
        _refuse_nul(node.value, path, mark)
        raw[path] = node.value
        return convert_scalar(node.value, quoted=node.style in _QUOTED)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(child, (*path, str(index)), file, marks, raw) for index, child in enumerate(node.value)]
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        place = f"{file}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise UsageError(f"{place}: a key must be plain text")
        key = key_node.value
        _refuse_nul(key, (*path, repr(key)), place)
        if key == "<<":
            raise UsageError(f"{place}: merge keys are not supported", fix="use extends: to share settings")
        if key in result:
            first = str(marks.get((*path, key), "")).rsplit(":", 1)[-1]
            raise UsageError(
                f"{place}: {'.'.join((*path, key))} is given twice (first on line {first})",
                why="YAML readers silently keep only the last one",
                fix="remove one of the two",
            )
        result[key] = _construct(value_node, (*path, key), file, marks, raw)
        marks[(*path, key)] = Mark(file, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
    return result


def _refuse_nul(text: str, path: Path, place: object) -> None:
    if "\x00" in text:
        raise UsageError(
            f"{place}: {'.'.join(path)}: a NUL character",
            why="no path, argument or variable can hold one",
            fix="remove it",
        )


def convert_scalar(text: str, *, quoted: bool = False) -> str | int | float | bool | None:
    """The value of one scalar: quoted text stays text, and so does all that is not clearly a constant or a number."""
    if quoted:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.match(text) and len(text) <= 4000:
        return int(text)
    if _DECIMAL.match(text):
        return float(text)
    return text


def _snippet(text: str, line: int) -> str:
    lines = text.split("\n")
    shown = lines[line - 1].strip()[:120] if 0 < line <= len(lines) else ""
    return f"the line reads: {shown}" if shown else ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
