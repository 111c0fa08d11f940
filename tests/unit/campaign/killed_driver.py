"""`deploy` that dies by SIGKILL at its KILL_AT-th boundary: just before or just after a note of progress is written."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[3]))

from shardwright.campaign import marks
from shardwright.cli.main import main

_left = [int(os.environ["KILL_AT"])]


def _boundary() -> None:
    _left[0] -= 1
    if _left[0] == 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _fatal(work: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        _boundary()
        result = work(*arguments, **keywords)
        _boundary()
        return result

    return call


# Before anything imports the names from there.
marks.write_mark = _fatal(marks.write_mark)
marks.clear_mark = _fatal(marks.clear_mark)
main(sys.argv[1:])
