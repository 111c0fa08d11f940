"""Which engine files a set of patches will cover, told from their metadata alone: no engine tree is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from shardwright.facts.versions import parse_version
from shardwright.overlay.edits import ADDITIVE_PACKAGE
from shardwright.overlay.patch import Patch

GENERATOR = "1"
"""Raised when the same patches would give other files, so that old overlays are not taken for current ones."""


class Target(Struct, frozen=True):
    """One path below the vllm package, e.g. `v1/worker/cpu_model_runner.py`.

    `adds` marks the additive directory, which the engine does not have and which is mounted as one.
    """

    relative: str
    adds: bool


def targets(patches: Sequence[Patch], vllm_version: str) -> tuple[Target, ...]:
    """The paths to cover, sorted, each once. DeployError when a patch was not written for the version."""
    edits = [edit for patch in patches for edit in patch.edits_for(vllm_version)]
    files = {edit.relative for edit in edits if edit.op != "new_module"}
    found = {Target(relative, adds=False) for relative in files}
    if any(edit.op == "new_module" for edit in edits):
        found.add(Target(ADDITIVE_PACKAGE, adds=True))
    return tuple(sorted(found, key=lambda target: target.relative))


def series_key(patches: Sequence[Patch], vllm_version: str) -> str:
    """12 hex digits over the ordered patch digests and the engine version."""
    version = ".".join(str(part) for part in parse_version(vllm_version))
    content = "\n".join([GENERATOR, version, *(f"{patch.id} {patch.digest}" for patch in patches)])
    return hashlib.sha256(content.encode()).hexdigest()[:12]
