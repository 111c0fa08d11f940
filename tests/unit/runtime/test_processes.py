"""Processes are told apart from later ones with the same number, and strangers are never signalled."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from runtime_samples import eventually

from shardwright.connect.processes import (
    ProcessIdentity,
    identify,
    is_alive,
    port_holder,
    send_signal,
    session_members,
    started_at,
)

PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); {}"


def sleeper(code: str = "import time; time.sleep(60)") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    child = sleeper()
    yield child
    child.kill()
    child.wait()


def known(pid: int) -> ProcessIdentity:
    identity = identify(pid)
    assert identity is not None
    return identity


def test_a_living_process_is_alive_until_it_ends(process: subprocess.Popen[bytes]) -> None:
    identity = known(process.pid)
    assert is_alive(identity)
    process.kill()
    # Not reaped yet: its remains are not a process that runs.
    assert eventually(lambda: not is_alive(identity))


def test_a_number_that_was_given_out_again_is_another_process(process: subprocess.Popen[bytes]) -> None:
    now = known(process.pid)
    earlier = replace(now, start_ticks=now.start_ticks - 1)
    assert not is_alive(earlier)
    assert not send_signal(earlier, signal.SIGKILL)
    assert session_members(earlier) == ()
    assert process.poll() is None


def test_a_record_from_before_a_reboot_never_matches(process: subprocess.Popen[bytes]) -> None:
    before = replace(known(process.pid), boot_id="00000000-0000-0000-0000-000000000000")
    assert not is_alive(before)
    assert not send_signal(before, signal.SIGKILL)
    assert session_members(before) == ()
    assert started_at(before) is None
    assert process.poll() is None


def test_a_signal_reaches_the_process_that_is_meant(process: subprocess.Popen[bytes]) -> None:
    assert send_signal(known(process.pid), signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM


def test_a_process_that_is_gone_is_not_signalled() -> None:
    child = sleeper("pass")
    identity = ProcessIdentity(child.pid, 1, "x")
    child.wait()
    assert not send_signal(identity, signal.SIGTERM)


def test_workers_are_found_also_after_their_leader_has_ended() -> None:
    leader = sleeper(PARENT.format("time.sleep(60)"))
    identity = known(leader.pid)
    assert len(eventually(lambda: len(session_members(identity)) == 2 and session_members(identity))) == 2
    leader.kill()
    leader.wait()
    (left,) = session_members(identity)
    assert send_signal(left, signal.SIGKILL)
    assert eventually(lambda: not session_members(identity))


def test_the_start_of_a_process_is_known_in_unix_seconds(process: subprocess.Popen[bytes]) -> None:
    begun = started_at(known(process.pid))
    assert begun is not None
    assert abs(time.time() - begun) < 30


def test_who_listens_on_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        holder = port_holder(port)
        assert holder is not None
        assert holder.pid == os.getpid()
        assert "pytest" in holder.command
    assert port_holder(port) is None
