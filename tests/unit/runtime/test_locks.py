"""Two at once: one wins, the other is told who holds the lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_samples import eventually

from shardwright.connect.locks import hold
from shardwright.errors import DeployError

HOLDER = """
import sys, time
from pathlib import Path
from shardwright.connect.locks import hold
with hold(Path(sys.argv[1]), "deploy start other"):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_loser_is_told_who_holds_the_lock_and_since_when(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "quick.lock"
    with holder(lock) as other:
        with pytest.raises(DeployError) as caught, hold(lock, "deploy start quick"):
            pytest.fail("two holders")
        other.kill()
    assert f"pid {other.pid}, since 2" in caught.value.what
    assert "deploy start other" in caught.value.what


def test_what_a_killed_holder_left_is_no_obstacle(tmp_path: Path) -> None:
    lock = tmp_path / "quick.lock"
    with holder(lock) as other:
        other.kill()
    assert b"deploy start other" in lock.read_bytes()
    with hold(lock, "deploy start quick"):
        assert str(os.getpid()) in lock.read_text()


def test_the_lock_is_free_after_the_block_and_after_an_error_in_it(tmp_path: Path) -> None:
    lock = tmp_path / "quick.lock"
    with pytest.raises(ValueError, match="inside"), hold(lock, "first"):
        raise ValueError("inside")
    with hold(lock, "second"):
        pass
    assert lock.read_text() == ""


def test_a_refusal_leaves_nothing_to_take_up_and_a_crash_does(tmp_path: Path) -> None:
    lock = tmp_path / "quick.lock"
    for error, left in ((DeployError("no engine"), False), (ValueError("crash"), True)):
        with pytest.raises(type(error)), hold(lock, "deploy up quick"):
            raise error
        with hold(lock, "deploy up quick") as dead:
            assert (dead is not None) is left


def test_a_program_started_while_the_lock_is_held_does_not_keep_it(tmp_path: Path) -> None:
    lock = tmp_path / "quick.lock"
    with hold(lock, "first"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with hold(lock, "second"):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_holder_that_has_not_written_its_note_yet_still_holds(tmp_path: Path) -> None:
    lock = tmp_path / "quick.lock"
    with holder(lock) as other:
        os.truncate(lock, 0)
        with pytest.raises(DeployError, match="has not said who it is"), hold(lock, "deploy start quick"):
            pytest.fail("two holders")
        other.kill()
    eventually(lambda: other.poll() is not None)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployError, match=r"the lock .* cannot be opened"), hold(tmp_path / "file" / "x.lock", "x"):
        pytest.fail("no lock")
