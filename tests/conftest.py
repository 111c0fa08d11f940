"""Tiers: tests that need more than Python say so by a marker, and the run says at its end what was not run and why.

A tier whose prerequisite is missing is skipped with the reason. REQUIRE_TIERS="docker vllm" makes it an error instead,
and a skipped test of a required tier makes the run fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no fault of the code under test.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

ENGINE_IMAGE = os.environ.get("ENGINE_IMAGE", "shardwright-test/vllm-cpu:0.30.0")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _docker_problem() -> str:
    if shutil.which("docker") is None:
        return "docker is not installed"
    if subprocess.run(["docker", "version"], capture_output=True).returncode != 0:
        return "no Docker engine answers"
    if subprocess.run(["docker", "image", "inspect", ENGINE_IMAGE], capture_output=True).returncode != 0:
        return f"there is no image {ENGINE_IMAGE}; as root: scripts/build_engine_image.sh"
    return ""


def _vllm_problem() -> str:
    return "" if importlib.util.find_spec("vllm") else "vLLM is not installed here; run: make engine"


def _browser_problem() -> str:
    return "" if any(map(shutil.which, BROWSERS)) else f"none of {', '.join(BROWSERS)} is installed"


def _slow_problem() -> str:
    return "" if "slow" in _required() else "only on request: REQUIRE_TIERS=slow"


PROBLEMS: dict[str, Callable[[], str]] = {
    "docker": _docker_problem,
    "vllm": _vllm_problem,
    "browser": _browser_problem,
    "slow": _slow_problem,
}


class Tiers:
    """What each tier's tests came to, and why a tier could not run."""

    def __init__(self) -> None:
        self.why: dict[str, str] = {}
        self.ran: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    def problem(self, tier: str) -> str:
        if tier not in self.why:
            self.why[tier] = PROBLEMS[tier]()
        return self.why[tier]

    def failed_requirements(self) -> list[str]:
        return [tier for tier in _required() if self.skipped[tier]]


_PROPERTY = "tiers"
_tiers = Tiers()


def _required() -> list[str]:
    return os.environ.get("REQUIRE_TIERS", "").split()


def pytest_sessionstart() -> None:
    # A shell starts background jobs with Ctrl-C ignored, and children inherit that; tests of Ctrl-C need it back.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for tier in _required():
        if tier not in PROBLEMS:
            raise pytest.UsageError(f"REQUIRE_TIERS: there is no tier {tier!r}; there are {', '.join(PROBLEMS)}")
        if _tiers.problem(tier):
            raise pytest.UsageError(f"REQUIRE_TIERS asks for {tier}, but {_tiers.problem(tier)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tiers = [tier for tier in PROBLEMS if item.get_closest_marker(tier)]
        # Travels with every report of the test, also out of a worker process.
        item.user_properties.append((_PROPERTY, tiers))
        for tier in tiers:
            if _tiers.problem(tier):
                item.add_marker(pytest.mark.skip(reason=f"tier {tier}: {_tiers.problem(tier)}"))
                break


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for tier in dict(report.user_properties).get(_PROPERTY, []):
        if report.skipped:
            _tiers.skipped[tier] += 1
        elif report.when == "call":
            _tiers.ran[tier] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and _tiers.failed_requirements():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for tier in PROBLEMS:
        ran, skipped = _tiers.ran[tier], _tiers.skipped[tier]
        if ran or skipped:
            reason = f" ({_tiers.problem(tier)})" if _tiers.problem(tier) else ""
            terminalreporter.write_line(f"tier {tier}: {ran} ran, {skipped} skipped{reason}")
    for tier in _tiers.failed_requirements():
        terminalreporter.write_line(f"FAILED: REQUIRE_TIERS asks for {tier}, yet some of its tests were skipped")


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout that is tested."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def engine_image() -> str:
    """The image with a real vLLM for the CPU; use it in tests with the docker marker."""
    return ENGINE_IMAGE


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
