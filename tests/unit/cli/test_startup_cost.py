"""What a person waits for: whole processes, paired in one run with a Python that does nothing."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence

import pytest

from tests.unit.helpers import ROOT, clean_environment

pytestmark = pytest.mark.slow

ROUNDS = 15
NOTHING = [sys.executable, "-c", "pass"]
DEPLOY = [sys.executable, str(ROOT / "deploy.py")]


def cpu_seconds(words: Sequence[str]) -> float:
    """User and system time of one process with all that it waited for."""
    environment = clean_environment()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    pid = os.posix_spawn(words[0], words, environment, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize(("verb", "limit"), [(["--help"], 6.0), (["cmd"], 10.0)], ids=["help", "cmd"])
def test_start_up_does_not_creep_above_its_multiple_of_an_empty_python(verb: list[str], limit: float):
    command = [*DEPLOY, *verb]
    cpu_seconds(command)  # writes the bytecode
    ratios = []
    for _ in range(ROUNDS):
        nothing = cpu_seconds(NOTHING)
        ratios.append(cpu_seconds(command) / nothing)
    ratio = statistics.median(ratios)
    assert ratio <= limit, f"deploy {' '.join(verb)} costs {ratio:.1f} times an empty Python; the limit is {limit:g}"
