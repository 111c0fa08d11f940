"""Secrets on their way into a container: a file that only its owner reads, in the form that `sh` reads with `.`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path


def write_secrets(path: Path, secrets: Mapping[str, str]) -> None:
    """Write `NAME='value'` lines to a new 0600 file, replacing what an earlier start left there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{name}={shlex.quote(value)}\n" for name, value in secrets.items())


def discard_secrets(path: Path) -> None:
    """Remove the file; one that is gone already is fine."""
    path.unlink(missing_ok=True)
