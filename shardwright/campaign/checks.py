"""Verdicts on engines that cannot change, kept: a wheel or an image is looked at once for each state of a patch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from shardwright.connect.atomic import write_file
from shardwright.connect.trees import ImageTree, SourceTree, WheelTree
from shardwright.overlay import patch as overlay_patch
from shardwright.overlay.patch import Patch
from shardwright.overlay.reach import Reacher
from shardwright.overlay.report import check_patch
from shardwright.overlay.verdicts import EditVerdict, Verdict
from shardwright.overlay.verified import VERIFIED_FILE


def check_kept(
    patch: Patch, tree: SourceTree, platform: str | None, reacher: Reacher, cache_root: Path
) -> list[EditVerdict]:
    """`check_patch`, answered from `cache_root` where the same question about the same files was asked before.

    An installed package may change under the same name, so it is always looked at anew.
    """
    if not isinstance(tree, WheelTree | ImageTree):
        return check_patch(patch, tree, platform, reacher)
    file = cache_root / "checks" / f"{_key(patch, tree, platform)}.json"
    kept = _read(file)
    if kept is None:
        kept = check_patch(patch, tree, platform, reacher)
        write_file(file, json.dumps([asdict(row) for row in kept]).encode())
    return kept


def _key(patch: Patch, tree: SourceTree, platform: str | None) -> str:
    verified = Path(patch.directory) / VERIFIED_FILE
    looked_at = verified.read_bytes() if verified.is_file() else b""
    words = [_own_digest(), tree.identity, patch.directory, patch.digest, platform or ""]
    return hashlib.sha256("\n".join(words).encode() + looked_at).hexdigest()[:32]


@cache
def _own_digest() -> str:
    """Of the code that judges, so that a changed tool asks again."""
    digest = hashlib.sha256()
    for file in sorted(Path(overlay_patch.__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _read(file: Path) -> list[EditVerdict] | None:
    try:
        rows: Any = json.loads(file.read_bytes())
        if not isinstance(rows, list) or not rows:
            return None
        return [EditVerdict(**{**row, "verdict": Verdict(row["verdict"])}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return None
