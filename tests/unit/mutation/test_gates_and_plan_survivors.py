"""No mutant of the gates and the planner survives their unit tests, but those listed with a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_comparison_constant_or_boolean_that_no_test_holds(project_root: Path) -> None:
    argv = [sys.executable, "tests/mutation/run.py"]
    done = subprocess.run(argv, cwd=project_root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
