"""Fixtures of the overlay tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from overlay_samples import MemoryTree, edit, write_patch

from shardwright.overlay.patch import Patch, read_patch


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture
def make_patch(tmp_path: Path) -> Callable[..., Patch]:
    """Write and read a patch: `make_patch(edit(...), body="...", patch_id="demo")`."""

    def make(*edits: dict[str, Any], patch_id: str = "demo", root: str = "patches", **keys: Any) -> Patch:
        return read_patch(write_patch(tmp_path / root / patch_id, list(edits) or [edit()], **keys))

    return make
