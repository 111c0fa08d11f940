"""The suite must not pass in silence when a tier did not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.browser
def test_browser(): pass

@pytest.mark.slow
def test_gives_up(): pytest.skip("no reason")

def test_fast(): pass
"""


@pytest.fixture
def suite(tmp_path: Path, project_root: Path) -> Path:
    (tmp_path / "conftest.py").write_text((project_root / "tests" / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(TESTS)
    markers = "\n".join(f"  {tier}: x" for tier in ("docker", "vllm", "browser", "slow"))
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\naddopts = --strict-markers -p no:cacheprovider\nmarkers =\n{markers}\n"
    )
    return tmp_path


def run(suite: Path, required: str, *arguments: str) -> tuple[int, str]:
    # An empty PATH has neither browsers nor docker.
    environment = {
        **os.environ,
        "REQUIRE_TIERS": required,
        "PATH": str(suite),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    argv = [sys.executable, "-m", "pytest", "-q", *arguments]
    done = subprocess.run(argv, cwd=suite, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_tier_that_cannot_run_is_skipped_with_its_reason(suite: Path) -> None:
    code, output = run(suite, "")
    assert code == 0
    assert "tier slow: 0 ran, 2 skipped (only on request: REQUIRE_TIERS=slow)" in output
    assert "tier browser: 0 ran, 1 skipped (none of chromium" in output
    assert "tier docker" not in output


@pytest.mark.parametrize(
    ("required", "reason"),
    [
        ("docker", "REQUIRE_TIERS asks for docker, but docker is not installed"),
        ("browser", "REQUIRE_TIERS asks for browser, but none of"),
        ("dokcer", "there is no tier 'dokcer'"),
    ],
)
def test_a_required_tier_without_its_prerequisite_is_an_error(suite: Path, required: str, reason: str) -> None:
    code, output = run(suite, required)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert reason in output


def test_a_required_tier_may_not_skip_by_itself(suite: Path) -> None:
    code, output = run(suite, "slow")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "tier slow: 1 ran, 1 skipped" in output
    assert "FAILED: REQUIRE_TIERS asks for slow" in output


def test_a_required_tier_that_ran_whole_passes(suite: Path) -> None:
    code, output = run(suite, "slow", "--deselect", "test_some.py::test_gives_up")
    assert code == 0
    assert "tier slow: 1 ran, 0 skipped" in output
