"""Where configuration is read from and where generated files go."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from shardwright.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent


class Project(Struct, frozen=True):
    """`root` receives overlays, state and records; `search` lists the folders that hold configs/ and patches/.

    The project's own folder comes first, so that its files win over the shipped ones.
    """

    root: Path
    search: tuple[Path, ...]

    def find(self, relative: str) -> Path | None:
        """The first existing file or folder called `relative`."""
        for base in self.search:
            candidate = base / relative
            try:
                if candidate.exists():
                    return candidate
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
        return None

    def patch_roots(self) -> tuple[Path, ...]:
        return tuple(base / "patches" for base in self.search if (base / "patches").is_dir())

    def shown(self, path: Path) -> str:
        """`path` as errors show it: relative to the folder that it was found in."""
        for base in self.search:
            try:
                return str(path.relative_to(base))
            except ValueError:
                continue
        return str(path)

    def state_dir(self) -> Path:
        """Locks and the state of local runs."""
        return self.root / ".deploy"


def open_project(environ: Mapping[str, str], cwd: Path | None = None) -> Project:
    """The project of DEPLOY_PROJECT, else of the nearest parent folder with configs/ of ours, else the current one.

    Raises UsageError where DEPLOY_PROJECT names no folder, or the current one was removed.
    """
    start = Path(os.path.abspath(cwd)) if cwd else _current_folder()
    named = environ.get("DEPLOY_PROJECT")
    if named and not Path(named).is_dir():
        raise UsageError(f"DEPLOY_PROJECT={named} is no folder", fix="make it, or unset DEPLOY_PROJECT")
    root = Path(os.path.abspath(named)) if named else _nearest_project(start) or start
    bundled = shipped_data()
    return Project(root, (root,) if root == bundled else (root, bundled))


def shipped_data() -> Path:
    """The folder with the shipped configs/ and patches/: package data when installed, the checkout otherwise."""
    data = _PACKAGE / "_data"
    return data if data.is_dir() else _PACKAGE.parent


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder was removed", fix="cd to one that is there") from None


def _nearest_project(start: Path) -> Path | None:
    for folder in (start, *start.parents):
        if (folder / "configs" / "layouts").is_dir() or (folder / "configs" / "deploy.yaml").is_file():
            return folder
    return None
