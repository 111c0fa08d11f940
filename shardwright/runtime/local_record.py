"""What is written down about one local engine: a folder with what was started, its process, its log and its end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardwright.connect.atomic import write_file
from shardwright.connect.processes import ProcessIdentity, is_alive, started_at
from shardwright.runtime.base import EngineState, EngineStatus

LOG = "engine.log"
PREVIOUS_LOG = "engine.log.1"
PROCESS = "process.json"
EXIT = "exit.json"
STATE = "state.json"
_START_GRACE_S = 60.0
"""A start takes well under a second; one without a process after this long was cut off."""


@dataclass(frozen=True)
class Started:
    """What was asked for; written before the process exists. `created_at` is in unix seconds.

    Neither `argv` nor `env`, the rendered variables, holds a secret. `env` is None in records of older versions.
    """

    name: str
    layout: str
    digest: str
    argv: tuple[str, ...]
    port: int
    created_at: float
    env: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True)
class Record:
    """The folder of one engine. Files that are missing, cut short or of another kind read as None."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / LOG

    @property
    def process_file(self) -> Path:
        return self.folder / PROCESS

    @property
    def exit_file(self) -> Path:
        return self.folder / EXIT

    def begin(self, started: Started) -> None:
        """Make the folder ready for a new run; the log of the run before is kept as `engine.log.1`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process_file.unlink(missing_ok=True)
        self.exit_file.unlink(missing_ok=True)
        if self.log.exists():
            self.log.replace(self.folder / PREVIOUS_LOG)
        write_file(self.folder / STATE, json.dumps(asdict(started), indent=1).encode())

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def started(self) -> Started | None:
        data = _read(self.folder / STATE)
        try:
            return Started(
                name=str(data["name"]),
                layout=str(data["layout"]),
                digest=str(data["digest"]),
                argv=tuple(data["argv"]),
                port=int(data["port"]),
                created_at=float(data["created_at"]),
                env=_pairs(data.get("env")),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def process(self) -> ProcessIdentity | None:
        """The engine's own process, which began the session of all its workers."""
        return self._identity("engine")

    def supervisor(self) -> ProcessIdentity | None:
        """The process that waits for the engine's end."""
        return self._identity("supervisor")

    def _identity(self, whose: str) -> ProcessIdentity | None:
        try:
            data = _read(self.process_file)[whose]
            return ProcessIdentity(int(data["pid"]), int(data["start_ticks"]), str(data["boot_id"]))
        except (KeyError, TypeError, ValueError):
            return None

    def ended(self) -> bool:
        return self.exit_file.exists()

    def exit_code(self) -> int | None:
        code = _read(self.exit_file).get("exit_code")
        return code if isinstance(code, int) else None

    def write_exit(self, exit_code: int | None) -> None:
        """Note an end that nobody watched."""
        write_file(self.exit_file, json.dumps({"exit_code": exit_code}).encode())

    def state(self) -> EngineState | None:
        """The engine as it is now; None when this is not the folder of one."""
        started = self.started()
        if started is None:
            return None
        process = self.process()
        status: EngineStatus
        if self.ended():
            status = "exited"
        elif process is None:
            status = "created" if time.time() - started.created_at < _START_GRACE_S else "dead"
        else:
            status = "running" if is_alive(process) else self._after_its_end()
        begun = started_at(process) if process is not None else None
        return EngineState(
            name=started.name,
            layout=started.layout,
            status=status,
            exit_code=self.exit_code(),
            restart_count=0,
            started_at=begun if begun is not None else started.created_at,
            identifier=str(process.pid) if process is not None else "",
        )

    def _after_its_end(self) -> EngineStatus:
        # The supervisor notes the exit code a moment after the end; until then the engine is not over.
        supervisor = self.supervisor()
        note_is_coming = supervisor is not None and is_alive(supervisor)
        if self.ended():
            return "exited"
        return "running" if note_is_coming else "dead"


def records(root: Path) -> Iterator[Record]:
    """All folders of engines below `root`."""
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            if (folder / STATE).is_file():
                yield Record(folder)


def _pairs(value: Any) -> tuple[tuple[str, str], ...] | None:
    return None if value is None else tuple((str(name), str(content)) for name, content in value)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
