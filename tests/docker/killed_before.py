"""`deploy` that dies by SIGKILL where it would call the function that KILL_BEFORE names, as `module:function`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[2]))

from shardwright.cli.main import main

_module, _function = os.environ["KILL_BEFORE"].split(":")
_target = importlib.import_module(_module)
assert callable(getattr(_target, _function)), "the boundary is not there any more"
setattr(_target, _function, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
main(sys.argv[1:])
