"""vLLM from a Python environment on this host, as a process of its own that outlives the command that started it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shardwright.connect import supervisor
from shardwright.connect.processes import ProcessIdentity, is_alive, send_signal, session_members
from shardwright.connect.tail import read_tail, tail_file
from shardwright.connect.trees import InstalledTree
from shardwright.errors import DeployError
from shardwright.render.command import RenderedCommand
from shardwright.resolve.deployment import Deployment
from shardwright.runtime import local_drift, local_preflight
from shardwright.runtime.base import EngineState
from shardwright.runtime.description import Description
from shardwright.runtime.local_record import Record, Started, records

INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
"""What an engine inherits of this shell: where things lie on this host. What changes the engine is in the layout."""

_START_TIMEOUT_S = 30.0
_KILL_TIMEOUT_S = 10.0
_POLL_S = 0.1


class LocalRuntime:
    """Engines of one project on this host; their records lie below `<project>/.deploy/local`."""

    kind = "local"

    def __init__(self, project_root: str | Path) -> None:
        self._root = Path(project_root) / ".deploy" / "local"

    def preflight(self, deployment: Deployment) -> None:
        """Interpreter, vLLM and its version, port, model, overlays and mounts. Raises DeployError."""
        local_preflight.check(deployment)

    def engine_identity(self, deployment: Deployment) -> str:
        """The folder of the package that the deployment's interpreter would import."""
        return InstalledTree(local_preflight.interpreter(deployment)).identity

    def expect(self, deployment: Deployment, command: RenderedCommand) -> Description:
        """The process that the rendered command would become now."""
        return local_drift.wanted_process(deployment, command)

    def describe(self, name: str, wanted: Description, secrets: Collection[str] = ()) -> Description:
        """The process of ours, from its record and from /proc."""
        started_at = self.state(name).started_at or 0.0
        return local_drift.running_process(self._record(name), started_at, wanted, {*INHERITED, *secrets})

    def start(self, deployment: Deployment, command: RenderedCommand, secrets: Mapping[str, str]) -> EngineState:
        """Execute `command.argv` detached: own session, no standard input, output to the engine's log.

        The environment is what INHERITED names, then `command.env`, then the secrets, which stand nowhere else.
        """
        record = self._record(deployment.instance_name)
        state = record.state()
        if state is not None and self._living(record):
            raise DeployError(
                f"{state.name} already runs (pid {state.identifier or 'unknown'})",
                fix=f"deploy stop {deployment.name}, or deploy wait {deployment.name}",
            )
        record.begin(
            Started(
                name=deployment.instance_name,
                layout=deployment.name,
                digest=deployment.digest,
                argv=command.argv,
                env=tuple(command.env),
                port=deployment.container.publish_port,
                created_at=time.time(),
            )
        )
        try:
            _spawn(record, command.argv, engine_environment(os.environ, command, secrets), deployment.project_root)
        except DeployError:
            # Not on an interrupt: the engine may have just begun, and without its record nobody could stop it.
            if record.process() is None:
                record.remove()
            raise
        return self.state(deployment.instance_name)

    def state(self, name: str) -> EngineState:
        """Read from the record and /proc: a process that only has the same number does not count."""
        return self._record(name).state() or _absent(name)

    def instances(self, layout: str | None = None) -> tuple[EngineState, ...]:
        """Ours, newest first."""
        states = [state for record in records(self._root) if (state := record.state()) is not None]
        mine = [state for state in states if layout is None or state.layout == layout]
        return tuple(sorted(mine, key=lambda state: state.started_at or 0.0, reverse=True))

    def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Lines of the engine's log; `follow` ends when the engine has ended and its log is read."""
        record = self._record(name)
        if record.started() is None:
            raise DeployError(f"there is no engine {name}", fix="deploy status")
        if follow:
            return tail_file(record.log, lambda: self.state(name).status in ("created", "running"), tail=tail)
        return read_tail(record.log, tail)

    def stop(self, name: str, timeout_s: int) -> EngineState:
        """SIGTERM to the engine and, when it has ended, to what it left behind; SIGKILL to all after `timeout_s`.

        Returns when no process of the engine's session is left. The engine gets the signal first and alone, as from
        `docker stop`, since it shuts its workers down itself.
        """
        record = self._record(name)
        process = record.process()
        if process is None:
            return self.state(name)
        deadline = time.monotonic() + timeout_s
        send_signal(process, signal.SIGTERM)
        _wait_until(lambda: not is_alive(process), deadline)
        _end_session(process, signal.SIGTERM, deadline)
        if not _end_session(process, signal.SIGKILL, time.monotonic() + _KILL_TIMEOUT_S):
            left = ", ".join(str(member.pid) for member in session_members(process))
            raise DeployError(
                f"{name} does not end: pid {left} survived SIGKILL",
                why="a process that waits for a device or a network file system cannot be killed",
                fix=f"ps -o pid,stat,wchan,cmd -p {left.replace(' ', '')}",
            )
        # The supervisor writes the exit code; where it is gone, we note that the engine has ended.
        if not _wait_until(record.ended, time.monotonic() + 2.0):
            record.write_exit(None)
        return self.state(name)

    def resume(self, name: str, secrets: Mapping[str, str]) -> EngineState:
        """Execute what the record of a stopped engine says, in the environment that it was rendered with."""
        record = self._record(name)
        before = record.started()
        if before is None or before.env is None or self._living(record):
            raise DeployError(f"the engine {name} cannot be started again", fix="deploy status")
        record.begin(replace(before, created_at=time.time()))
        _spawn(record, before.argv, _environment(os.environ, before.env, secrets), str(self._root.parent.parent))
        return self.state(name)

    def remove_old(self, layout: str, keep: int, protected: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Delete the records and logs of stopped engines of a layout, but for the `keep` newest and the `protected`."""
        stopped = [state for state in self.instances(layout) if not self._living(self._record(state.name))]
        old = [state for state in stopped[keep:] if state.name not in protected]
        for state in old:
            self._record(state.name).remove()
        return tuple(state.name for state in old)

    def _record(self, name: str) -> Record:
        return Record(self._root / name)

    def _living(self, record: Record) -> bool:
        process = record.process()
        return process is not None and bool(session_members(process))


def engine_environment(
    inherited: Mapping[str, str], command: RenderedCommand, secrets: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of an engine, in the order of precedence: this host's, the deployment's, the secrets."""
    return _environment(inherited, command.env, secrets)


def _environment(
    inherited: Mapping[str, str], env: Iterable[tuple[str, str]], secrets: Mapping[str, str]
) -> dict[str, str]:
    base = {name: inherited[name] for name in INHERITED if name in inherited}
    return base | dict(env) | dict(secrets)


def _spawn(record: Record, argv: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise DeployError(f"{argv[0]} is not an executable on this host", fix="correct engine.python in the layout")
    report_read, report_write = os.pipe()
    try:
        with record.log.open("wb") as log:
            subprocess.run(
                # -I -S: the engine's PYTHONPATH and this environment's packages are not the supervisor's.
                [
                    *(sys.executable, "-I", "-S", str(supervisor.__file__)),
                    *(str(report_write), str(record.process_file), str(record.exit_file)),
                    *(program, *argv[1:]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                cwd=folder,
                pass_fds=(report_write,),
                start_new_session=True,
                check=True,
            )
        os.close(report_write)
        report_write = -1
        _check_report(report_read, argv[0])
    except (subprocess.CalledProcessError, OSError) as error:
        raise DeployError(f"{argv[0]} cannot be started: {error}") from None
    finally:
        os.close(report_read)
        if report_write >= 0:
            os.close(report_write)


def _check_report(report: int, program: str) -> None:
    if not select.select([report], [], [], _START_TIMEOUT_S)[0]:
        raise DeployError(f"{program} did not start within {_START_TIMEOUT_S:.0f} s")
    try:
        answer = json.loads(os.read(report, 65536))
    except ValueError:
        raise DeployError(f"{program} cannot be started: its supervisor ended") from None
    if "error" in answer:
        raise DeployError(f"{program} cannot be started: {answer['error']}", fix="correct engine.python in the layout")


def _end_session(leader: ProcessIdentity, number: signal.Signals, deadline: float) -> bool:
    for member in session_members(leader):
        send_signal(member, number)
    return _wait_until(lambda: not session_members(leader), deadline)


def _wait_until(done: Callable[[], bool], deadline: float) -> bool:
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _absent(name: str) -> EngineState:
    return EngineState(name, "", "absent", None, 0, None, "")
