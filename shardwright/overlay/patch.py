"""A patch as its author wrote it, decoded strictly from `patch.yaml`. docs/patches.md shows every key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct

from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import load_yaml
from shardwright.errors import DeployError, UsageError
from shardwright.facts.versions import version_in
from shardwright.overlay.edits import PLATFORMS, Edit, EditSpec, Op, decode_edit, read_text, turning_points

__all__ = ["PATCH_FILE", "PLATFORMS", "Edit", "Op", "Patch", "PlanEffects", "Reach", "Upstream", "read_patch"]

PATCH_FILE = "patch.yaml"
_UPSTREAM_STATES = ("pending", "submitted", "backport", "never")
_ID = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$", re.ASCII)
_ALIAS = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", re.ASCII)


class PlanEffects(Struct, frozen=True):
    """What the planner must count when this patch is in effect.

    `boundary_bytes_per_token`: bytes of persistent buffer per batched token on a stage that receives index rows.
    """

    indexers_on_orphans: bool
    boundary_bytes_per_token: int


class Reach(Struct, frozen=True):
    """The names in the engine's model registry whose code must run through the edits: models, and their drafts."""

    models: tuple[str, ...]
    drafts: tuple[str, ...]


class Upstream(Struct, frozen=True):
    """The fate of the change in vLLM. `obsolete_if`: texts that a patched file holds once upstream has the change."""

    status: str
    refs: tuple[str, ...]
    drop_when: str
    obsolete_if: tuple[str, ...]


class Patch(Struct, frozen=True):
    """A named set of edits that is applied whole or not at all."""

    id: str
    title: str
    why: str
    directory: str
    remedies: tuple[str, ...]
    aliases: tuple[str, ...]
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]
    platforms: tuple[str, ...]
    """Platforms that it is written for; empty means any."""
    plan_effects: PlanEffects
    shapes_graph: bool
    """Whether it changes the traced computation in a way that the engine's own compile cache keys may not show."""
    reach: Reach
    inert_when: str
    covers: Mapping[str, str]
    upstream: Upstream
    prove: Mapping[str, Any]
    expect: Mapping[str, str]
    """Version range to the verdict that `check` should give there; OK where no range admits the version."""
    edits: tuple[EditSpec, ...]
    digest: str
    """sha256 over patch.yaml and all bodies."""

    def supports(self, vllm_version: str) -> bool:
        """Whether every edit has a place in this engine version."""
        return all(edit.place_for(vllm_version) is not None for edit in self.edits)

    def ranges(self) -> tuple[str, ...]:
        """The version ranges in which every edit has a place."""
        points = turning_points(place.vllm for edit in self.edits for place in edit.places)
        found: list[str] = []
        for supported, run in groupby(zip(points, [*points[1:], ""], strict=True), lambda pair: self.supports(pair[0])):
            if supported:
                spans = list(run)
                begin, end = (version.removesuffix(".0") for version in (spans[0][0], spans[-1][1]))
                found.append(f">={begin},<{end}" if end else f">={begin}")
        return tuple(found)

    def edits_for(self, vllm_version: str) -> tuple[Edit, ...]:
        """The edits that one engine version needs, placed. DeployError when the patch was not written for it."""
        placed = []
        for spec in self.edits:
            place = spec.place_for(vllm_version)
            if place is None:
                raise DeployError(
                    f"patch {self.id}: edit {spec.id} has no place in vLLM {vllm_version}, "
                    f"the patch has {' and '.join(self.ranges())}",
                    why="an edit that is left out would start the engine half patched",
                    fix=f"add a variant for {vllm_version} to {Path(self.directory) / PATCH_FILE}, "
                    "or use an engine version that it has",
                )
            if not place.not_needed:
                placed.append(
                    Edit(
                        spec.id,
                        place.module,
                        place.symbol,
                        spec.op,
                        place.find,
                        place.count,
                        spec.body,
                        place.required_on,
                    )
                )
        return tuple(placed)


def read_patch(directory: Path) -> Patch:
    """Read `directory`/patch.yaml and its bodies.

    Raises UsageError with file, line and the nearest right key for anything that is not exactly the format.
    """
    file = directory / PATCH_FILE
    source = read_text(file)
    top = Section(load_yaml(source, str(file)))
    upstream, effects, reach = top.section("upstream"), top.section("plan_effects"), top.section("reach")
    edits = tuple(decode_edit(section, directory) for section in top.sections("edits"))
    _refuse_bad_edit_list(top, edits)
    patch = Patch(
        id=_patch_id(top, directory),
        title=top.text("title"),
        why=top.text("why"),
        directory=str(directory),
        remedies=top.texts("remedies"),
        aliases=_names(top, "aliases", _ALIAS),
        requires=_names(top, "requires", _ID),
        conflicts=_names(top, "conflicts", _ID),
        platforms=_platforms(top),
        plan_effects=PlanEffects(
            indexers_on_orphans=effects.boolean("indexers_on_orphans", False),
            boundary_bytes_per_token=effects.integer("boundary_bytes_per_token", 0, minimum=0),
        ),
        shapes_graph=top.choice("cache", ("graph", "none"), "none") == "graph",
        reach=Reach(reach.texts("models"), reach.texts("drafts")),
        inert_when=top.text("inert_when"),
        covers=_covers(top),
        upstream=Upstream(
            status=upstream.choice("status", _UPSTREAM_STATES),
            refs=upstream.texts("refs"),
            drop_when=upstream.text("drop_when", ""),
            obsolete_if=upstream.texts("obsolete_if"),
        ),
        prove=top.free_map("prove"),
        expect=_expect(top),
        edits=edits,
        digest=_digest(source, edits),
    )
    for section in (upstream, effects, reach, top):
        section.finish()
    return patch


def _refuse_bad_edit_list(top: Section, edits: Sequence[EditSpec]) -> None:
    if not edits:
        raise top.error("edits", "a patch needs at least one edit")
    ids = [edit.id for edit in edits]
    for edit_id in ids:
        if ids.count(edit_id) > 1:
            raise top.error("edits", f"two edits are named {edit_id!r}")


def _patch_id(top: Section, directory: Path) -> str:
    patch_id = top.text("id")
    if not _ID.match(patch_id):
        raise top.error("id", f"{patch_id!r} is not a patch name", fix="use lower-case letters, digits and '-'")
    if patch_id != directory.name:
        raise top.error("id", f"{patch_id!r} lies in a folder named {directory.name!r}", fix="give both one name")
    return patch_id


def _names(top: Section, key: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    names = top.texts(key)
    for name in names:
        if not pattern.match(name):
            raise top.error(key, f"{name!r} is not a patch name")
    return names


def _platforms(top: Section) -> tuple[str, ...]:
    platforms = top.texts("platforms")
    for platform in platforms:
        if platform not in PLATFORMS:
            raise top.error("platforms", f"{platform!r} is not one of {', '.join(PLATFORMS)}")
    return platforms


def _covers(top: Section) -> Mapping[str, str]:
    section = top.section("covers")
    texts = {name: section.text(name) for name in ("target", "draft") if name in section.data}
    section.finish()
    return texts


def _expect(top: Section) -> Mapping[str, str]:
    section = top.section("expect")
    verdicts = {}
    for versions in section.data:
        try:
            version_in("0.0", versions)
        except UsageError as error:
            raise section.error(versions, error.what, fix=error.fix) from None
        verdicts[versions] = section.text(versions)
    return verdicts


def _digest(source: str, edits: Sequence[EditSpec]) -> str:
    digest = hashlib.sha256()
    bodies = {edit.body_file: edit.body for edit in edits}
    for name, text in [(PATCH_FILE, source), *sorted(bodies.items())]:
        content = text.encode()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
