"""Processes of this host, told apart from later ones with the same number, and the ports of this host. Linux only."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"
_LISTEN = "0A"


@dataclass(frozen=True)
class ProcessIdentity:
    """One process for good: its number, its start in clock ticks after boot, and the boot that both belong to."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class PortHolder:
    """The process that listens on a port; `command` is its command line, cut to 160 characters."""

    pid: int
    command: str


@dataclass(frozen=True)
class _Stat:
    state: str
    session: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this number now; None when there is none, or only its unreaped remains."""
    stat = _stat(pid)
    if stat is None or stat.state in "ZX":
        return None
    return ProcessIdentity(pid, stat.start_ticks, boot_id())


def is_alive(process: ProcessIdentity) -> bool:
    """Whether this very process still runs; a later one with the same number does not count."""
    return identify(process.pid) == process


def started_at(process: ProcessIdentity) -> float | None:
    """Start of the process in unix seconds, to a tick (10 ms); None when it is from another boot."""
    if process.boot_id != boot_id():
        return None
    for line in (_PROC / "stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + process.start_ticks / os.sysconf("SC_CLK_TCK")
    return None


def send_signal(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone. A process that took over its number is never signalled."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle pins whichever process it was opened on, so what is checked now is what gets the signal.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def session_members(leader: ProcessIdentity) -> tuple[ProcessIdentity, ...]:
    """All living processes of the session that `leader` began, also after its own end; empty when they are gone.

    The kernel gives out a number again only when no session uses it any more, so a stranger that lives under the
    leader's number means that the session has ended.
    """
    if leader.boot_id != boot_id():
        return ()
    current = identify(leader.pid)
    if current is not None and current != leader:
        return ()
    members = []
    for pid in _pids():
        stat = _stat(pid)
        if stat is None or stat.session != leader.pid or stat.state in "ZX":
            continue
        members.append(ProcessIdentity(pid, stat.start_ticks, leader.boot_id))
    return tuple(members)


def port_holder(port: int) -> PortHolder | None:
    """Who listens on a TCP port of this host; None when nobody does or this user may not see it."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for pid in _pids():
        if inodes & _socket_inodes(pid):
            return PortHolder(pid, command_line(pid)[:160])
    return None


def listen_error(host: str, port: int) -> OSError | None:
    """What keeps this process from listening on a TCP address now; None where nothing does. IPv6 may be in brackets."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            return error
    return None


def command_line(pid: int) -> str:
    """The command line of a process as one text; empty when it cannot be read."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def environment_of(process: ProcessIdentity) -> dict[str, str] | None:
    """The environment that this very process was started with; None when it is gone or this user may not see it."""
    try:
        raw = (_PROC / str(process.pid) / "environ").read_bytes()
    except OSError:
        return None
    if not is_alive(process):
        return None
    pairs = (item.partition("=") for item in raw.decode(errors="surrogateescape").split("\0") if "=" in item)
    return {name: value for name, _equals, value in pairs}


def boot_id() -> str:
    """The kernel's name of the current boot."""
    return _BOOT_ID.read_text().strip()


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command in parentheses may hold blanks and parentheses itself: fields count from the last one on.
    fields = text[text.rfind(")") + 2 :].split()
    return _Stat(state=fields[0], session=int(fields[3]), start_ticks=int(fields[19]))


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (_PROC / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _socket_inodes(pid: int) -> set[str]:
    found: set[str] = set()
    try:
        entries = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return found
    for entry in entries:
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
