"""One edit of a patch: what it does, its body, and its place in each range of engine versions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from shardwright.connect.decode import Section
from shardwright.errors import UsageError
from shardwright.facts.versions import parse_version, version_in

Op = Literal["before", "after", "replace", "append_symbol", "new_module"]

ADDITIVE_PACKAGE = "_overlay"
"""Folder inside the vllm package for modules that a patch adds; it is mounted as one new directory."""

_OPS = ("before", "after", "replace", "append_symbol", "new_module")
_ANCHORED_OPS = ("before", "after", "replace")
PLATFORMS = ("cuda", "rocm", "cpu")

_PLACE_KEYS = ("vllm", "module", "symbol", "find", "count", "required_on")
_NAME = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$", re.ASCII)
_MODULE = re.compile(r"^vllm(\.[A-Za-z_][A-Za-z0-9_]*)+$", re.ASCII)
_ADDITIVE_MODULE = re.compile(rf"^vllm\.{ADDITIVE_PACKAGE}\.[a-z][a-z0-9_]*$", re.ASCII)
_SYMBOL = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", re.ASCII)
_VERSION_IN_RANGE = re.compile(r"\d+\.\d+(?:\.\d+)?", re.ASCII)


class Edit(Struct, frozen=True):
    """One edit placed for one engine version. `symbol` "" is the module itself; `new_module` has no `find`.

    `required_on`: the platforms on which the engine must run through the symbol; None means those of the patch.
    """

    id: str
    module: str
    symbol: str
    op: Op
    find: str
    count: int
    body: str
    required_on: tuple[str, ...] | None = None

    @property
    def relative(self) -> str:
        """The file below the vllm package: `vllm.v1.utils` is `v1/utils.py`.

        A package's own file is named with its `__init__`: `vllm.models.deepseek_v32.__init__`.
        """
        return self.module.removeprefix("vllm.").replace(".", "/") + ".py"


class Place(Struct, frozen=True):
    """Where an edit goes for the versions that the range `vllm` admits; `not_needed` says why it goes nowhere there."""

    vllm: str
    module: str
    symbol: str
    find: str
    count: int
    required_on: tuple[str, ...] | None = None
    not_needed: str = ""


class EditSpec(Struct, frozen=True):
    """One edit for all versions: one body, one place for each range of versions."""

    id: str
    op: Op
    body_file: str
    body: str
    places: tuple[Place, ...]

    def place_for(self, vllm_version: str) -> Place | None:
        """The place whose range admits the version; ranges do not overlap, `decode_edit` made sure."""
        return next((place for place in self.places if version_in(vllm_version, place.vllm)), None)


def decode_edit(section: Section, directory: Path) -> EditSpec:
    """Read one entry of `edits` and its body from `directory`. UsageError names file, line and key."""
    edit_id = section.text("id")
    if not _NAME.match(edit_id):
        raise section.error("id", f"{edit_id!r} is not an edit name", fix="use lower-case letters, digits and '-'")
    op: Op = section.choice("op", _OPS)
    body_file = section.text("body")
    body = _read_body(section, directory, body_file)
    variants = section.sections("variants")
    if variants:
        for key in _PLACE_KEYS:
            if section.has(key):
                raise section.error(key, "a place is given both here and under variants", fix=f"move {key} into them")
        places = tuple(_place(variant, op) for variant in variants)
        for variant in variants:
            variant.finish()
    else:
        places = (_place(section, op),)
    _refuse_overlap(section, places)
    section.finish()
    return EditSpec(edit_id, op, body_file, body, places)


def read_text(file: Path) -> str:
    """UTF-8 text with plain line ends. UsageError when it is missing, unreadable or not text."""
    try:
        return file.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise UsageError(f"{file} is not there") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None


def _place(section: Section, op: Op) -> Place:
    not_needed = section.text("not_needed", "")
    if not_needed:
        return Place(_range(section), "", "", "", 0, (), not_needed)
    place = Place(
        vllm=_range(section),
        module=_module(section, op),
        symbol=section.text("symbol", ""),
        find=section.text("find", "").replace("\r\n", "\n"),
        count=section.integer("count", 1, minimum=1),
        required_on=_required_on(section),
    )
    if place.symbol and not _SYMBOL.match(place.symbol):
        raise section.error("symbol", f"{place.symbol!r} is not a qualified name", fix="write it like Class.method")
    if op in _ANCHORED_OPS and not place.find.strip():
        raise section.error("find", f"op {op} needs one to three lines to find")
    if op not in _ANCHORED_OPS and (place.find or section.has("count")):
        raise section.error("find", f"op {op} finds nothing", fix="remove find and count")
    if op == "new_module" and place.symbol:
        raise section.error("symbol", "a new module has no symbol to edit", fix="remove symbol")
    return place


def _required_on(section: Section) -> tuple[str, ...] | None:
    if not section.has("required_on"):
        return None
    platforms = section.texts("required_on")
    for platform in platforms:
        if platform not in PLATFORMS:
            raise section.error("required_on", f"{platform!r} is not one of {', '.join(PLATFORMS)}")
    return platforms


def _module(section: Section, op: Op) -> str:
    module = section.text("module")
    if op == "new_module":
        if not _ADDITIVE_MODULE.match(module):
            raise section.error(
                "module",
                f"{module!r} is not a name for an added module",
                why="only the additive package can be mounted beside the engine's own files",
                fix=f"write module: vllm.{ADDITIVE_PACKAGE}.your_name",
            )
    elif not _MODULE.match(module) or module.split(".")[1] == ADDITIVE_PACKAGE:
        raise section.error("module", f"{module!r} is not a module of the engine", fix="write it like vllm.v1.utils")
    return module


def _range(section: Section) -> str:
    vllm = section.text("vllm")
    if not vllm.strip():
        raise section.error("vllm", "the range is empty", fix="write it like >=0.30,<0.31")
    try:
        version_in("0.0", vllm)
    except UsageError as error:
        raise section.error("vllm", error.what, fix=error.fix) from None
    return vllm


def _refuse_overlap(section: Section, places: tuple[Place, ...]) -> None:
    for version in turning_points(place.vllm for place in places):
        admitted = [place.vllm for place in places if version_in(version, place.vllm)]
        if len(admitted) > 1:
            raise section.error("variants", f"both {admitted[0]!r} and {admitted[1]!r} admit vLLM {version}")


def turning_points(ranges: Iterable[str]) -> list[str]:
    """The versions, rising, at which some of the ranges can begin or end: each bound, and the release after it."""
    bounds = [parse_version(text) for range_ in ranges for text in _VERSION_IN_RANGE.findall(range_)]
    points = sorted({(0, 0, 0), *bounds, *((major, minor, patch + 1) for major, minor, patch in bounds)})
    return [".".join(map(str, point)) for point in points]


def _read_body(section: Section, directory: Path, name: str) -> str:
    if Path(name).name != name or not name.endswith(".pyfrag"):
        raise section.error("body", f"{name!r} is not a .pyfrag file beside patch.yaml")
    try:
        body = read_text(directory / name)
    except UsageError as error:
        raise section.error("body", error.what) from None
    if not body.strip():
        raise section.error("body", f"{name} is empty")
    return body
