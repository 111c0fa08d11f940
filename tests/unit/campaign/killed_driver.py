"""`deploy` that dies by SIGKILL at a boundary: just before or after it marks its progress, or after it notes a deed.

KILL_AT counts the boundaries; KILL_AFTER names the deed after whose line in the audit it ends.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[3]))

from shardwright.campaign import audit, marks
from shardwright.cli.main import main

_left = [int(os.environ.get("KILL_AT", "0"))]


def _die() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _boundary() -> None:
    _left[0] -= 1
    if _left[0] == 0:
        _die()


def _fatal(work: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        _boundary()
        result = work(*arguments, **keywords)
        _boundary()
        return result

    return call


def _note(state_dir: Path, deed: str, *arguments: Any, **keywords: Any) -> None:
    _write_note(state_dir, deed, *arguments, **keywords)
    _boundary()
    if deed == os.environ.get("KILL_AFTER"):
        _die()


_write_note = audit.note
# Before anything imports the names from there.
audit.note = _note
marks.write_mark = _fatal(marks.write_mark)
marks.clear_mark = _fatal(marks.clear_mark)
main(sys.argv[1:])
