"""Starts one program in a session of its own, detached from the caller, and writes down its end.

Run as a script with nothing but the standard library, so that it works from a checkout and from an installation alike:
`supervisor.py REPORT_FD PROCESS_FILE EXIT_FILE PROGRAM [ARGUMENT ...]`. The environment is the program's, and standard
output and error are its log. One line of JSON goes to REPORT_FD: the process, or the error that kept it from starting.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_ORPHAN_TIMEOUT_S = 3.0
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    report, process_file, exit_file, *command = arguments
    # The caller waits for this process only; the one that goes on belongs to init and is reaped by it.
    if os.fork() > 0:
        return 0
    os.setsid()
    return supervise(int(report), Path(process_file), Path(exit_file), command)


def supervise(report: int, process_file: Path, exit_file: Path, command: list[str]) -> int:
    os.set_inheritable(report, False)
    failure_read, failure_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(failure_read)
        _become(command, failure_write)
    os.close(failure_write)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(failure_read) as pipe:
        error = pipe.read()
    if error:
        os.waitpid(child, 0)
        _say(report, {"error": error})
        return 1
    process = _identity(child)
    _write(process_file, {"engine": process, "supervisor": _identity(os.getpid())})
    _say(report, process)
    # Not reaped yet: as long as its remains are there, nobody else can get its number or join its session.
    end = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if end is not None:
        # As a shell counts: 128 + signal.
        code = end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status
        with contextlib.suppress(OSError):
            _write(exit_file, {"exit_code": code})
    _end_orphans(child)
    os.waitpid(child, 0)
    return 0


def _end_orphans(session: int) -> None:
    """Workers that outlive the engine hold its cards and its memory: they get a moment, then they are killed."""
    deadline = time.monotonic() + _ORPHAN_TIMEOUT_S
    while orphans := [pid for pid in _members(session) if pid != session]:
        if time.monotonic() >= deadline:
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.1)


def _members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else []
        if fields and int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def _become(command: list[str], failure: int) -> None:
    try:
        os.setsid()
        # What Python and a shell's background jobs ignore, the program would ignore as well.
        for number in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        os.write(failure, (error.strerror or str(error)).encode())
    finally:
        os._exit(127)


def _say(report: int, message: dict[str, object]) -> None:
    try:
        os.write(report, json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        pass
    finally:
        os.close(report)


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the process state on; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()


def _identity(pid: int) -> dict[str, object]:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "start_ticks": int(_stat(pid)[19]), "boot_id": boot_id}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
