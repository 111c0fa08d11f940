"""A file of trials, one JSON line each, that survives kill -9 and can be taken up again.

Lines are appended whole. A torn last line, left by a killed writer, is cut off; any other line that is no record is an
error, since it would silently shrink the sample.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.wire import REDACTED

Record = dict[str, Any]

# A key may equal one of our words ("EMPTY" is a customary one); those come from here, never from a server.
_OWN_WORDS = frozenset({"kind", "probe", "class", "task", "plan", "trial", "verdict", "prompt_id", "token_source"})
_BEGIN = b'{"kind": "'


class Journal:
    """An open file of records, locked against a second writer. `records` holds all that is on file.

    `secrets` are values that must not be written; they are replaced in every text but our own fixed words.
    Raises DeployError where the file cannot be used.
    """

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        self.path = path
        self._secrets = tuple(sorted({secret for secret in secrets if secret}, key=len, reverse=True))
        self.records: list[Record] = []
        self._regular = not path.exists() or path.is_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from None
        try:
            if self._regular:
                self._lock()
                self.records = self._load()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file for others."""
        os.close(self._file)

    def append(self, kind: str, record: Mapping[str, Any]) -> Record:
        """Write one record of this kind as one line and return it as written, without secrets."""
        clean: Record = {"kind": kind, **self._hide(record)}
        line = json.dumps(clean).encode("ascii") + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise _unusable(self.path, error.strerror or str(error)) from None
        self.records.append(clean)
        return clean

    def _lock(self) -> None:
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise JournalBusyError(
                f"another run is writing {self.path}",
                why="two runs in one file would count trials twice",
                fix="wait for it to end, or name another file with --output",
            ) from None

    def _load(self) -> list[Record]:
        content = _read_all(self._file)
        *lines, rest = content.split(b"\n")
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not (isinstance(record, dict) and isinstance(record.get("kind"), str)):
                raise self._foreign(number)
            records.append(record)
        if rest:
            if not rest.startswith(_BEGIN[: len(rest)]):
                raise self._foreign(len(lines) + 1)
            os.ftruncate(self._file, len(content) - len(rest))
        return records

    def _foreign(self, line: int) -> DeployError:
        return DeployError(
            f"{self.path}:{line}: not a record of trials",
            why="the file was not written by a probe, or was damaged",
            fix="name another file with --output",
        )

    def _hide(self, value: Any) -> Any:
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, REDACTED)
            return value
        if isinstance(value, Mapping):
            return {key: item if key in _OWN_WORDS else self._hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(item) for item in value]
        return value


class JournalBusyError(DeployError):
    """Another process holds the file."""


def _read_all(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    parts = []
    while part := os.read(file, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _unusable(path: Path, reason: str) -> DeployError:
    return DeployError(
        f"cannot write {path}: {reason}",
        why="trials that are not on file prove nothing",
        fix="name another file with --output",
        code=ExitCode.REFUSED,
    )
