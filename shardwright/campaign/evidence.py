"""The evidence of one run: a folder that says what ran, why it was let through, what was asked, and how it ended.

A bundle is written file by file while the run goes on, so that a run which was killed leaves what it had. Sealing it
puts the hash of every file, and one over all, into `seal.json`; from then on it does not change.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError

SCHEMA = "shardwright-evidence/v1"
MANIFEST = "manifest.json"
SEAL = "seal.json"
TRIALS = "trials"
REPORTS = "reports.json"
VERDICT = "verdict.json"
REDACTED = "[redacted]"

_SHORTEST_SECRET = 4
"""Replacing shorter values would garble the texts and hide nothing."""


@dataclass(frozen=True)
class Bundle:
    """One folder below runs/. `secrets` are values that no file of it may hold."""

    folder: Path
    secrets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def sealed(self) -> bool:
        return (self.folder / SEAL).is_file()

    def put(self, name: str, content: Any) -> None:
        """Write one JSON file, whole, without the values of secrets."""
        self.put_text(name, json.dumps(self._hide(content), indent=1, ensure_ascii=False) + "\n")

    def put_text(self, name: str, text: str) -> None:
        """Write one text file, whole, without the values of secrets. Raises DeployError when the disk takes none."""
        if self.sealed:
            raise DeployError(f"{self.folder} is sealed", why="evidence that changes afterwards proves nothing")
        try:
            write_file(self.folder / name, self._hide(text).encode("utf-8", "replace"))
        except OSError as error:
            raise DeployError(
                f"{self.folder / name} cannot be written: {error.strerror}",
                why="a run without its evidence proves nothing",
                fix="free some space and run the same command again; it goes on where it stopped",
            ) from None

    def read(self, name: str) -> Any:
        """The content of one JSON file, None where it is not there. Raises DeployError where it is damaged."""
        return read_json(self.folder / name)

    def trials(self, probe: str) -> Path:
        """Where the trials of a probe are kept."""
        return self.folder / TRIALS / f"{probe}.jsonl"

    def seal(self) -> str:
        """Hash everything and close the bundle; the hash over all. A sealed bundle stays as it is."""
        if not self.sealed:
            files = file_hashes(self.folder)
            self.put(SEAL, {"schema": SCHEMA, "files": files, "digest": digest_of(files)})
        digest = self.read(SEAL)["digest"]
        return str(digest)

    def _hide(self, value: Any) -> Any:
        if isinstance(value, str):
            for secret in self.secrets:
                value = value.replace(secret, REDACTED)
            return value
        if isinstance(value, Mapping):
            return {str(key): self._hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(item) for item in value]
        return value


def create_bundle(root: Path, layout: str, arm: str, secrets: Iterable[str] = ()) -> Bundle:
    """A new empty folder `runs/<time>-<layout>-<arm>`. Raises DeployError when it cannot be made."""
    while True:
        folder = free_folder(root, layout, arm)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise DeployError(f"{folder} cannot be made: {error.strerror}", fix="make the project writable") from None
        return open_bundle(folder, secrets)


def free_folder(root: Path, layout: str, arm: str) -> Path:
    """A name below runs/ that nothing has yet; made by the first file that is put there.

    For callers that note the name first and hold the lock of the layout: killed in between, they leave no folder.
    """
    stem = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{layout}-{_word(arm)}"
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(folder for name in names if not (folder := root / "runs" / name).exists())


def take_up(left: str | None, root: Path, layout: str, arm: str, secrets: Iterable[str] = ()) -> Bundle:
    """The bundle in the folder `left` of a run that was cut off; a new name where none is left, or it was sealed."""
    if left is not None and not (bundle := open_bundle(Path(left), secrets)).sealed:
        return bundle
    return open_bundle(free_folder(root, layout, arm), secrets)


def open_bundle(folder: Path, secrets: Iterable[str] = ()) -> Bundle:
    """A bundle that is there already, to be read or taken up."""
    known = sorted({value for value in secrets if len(value) >= _SHORTEST_SECRET}, key=len, reverse=True)
    return Bundle(folder, tuple(known))


def file_hashes(folder: Path) -> dict[str, str]:
    """sha256 of every file below `folder` but its own seal, by relative name in order."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SEAL)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def digest_of(files: Mapping[str, str]) -> str:
    """One hash over the names and hashes of all files."""
    lines = "".join(f"{value}  {name}\n" for name, value in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def read_json(path: Path) -> Any:
    """The content of a JSON file, None where there is none. Raises DeployError where it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DeployError(f"{path} cannot be read: {error}", why="the evidence is damaged") from None


def read_trials(bundle: Bundle, probe: str) -> list[dict[str, Any]]:
    """All records of a probe's file, none where it was not asked. DeployError where a line is no record."""
    from shardwright.probes.stored import read_records

    path = bundle.trials(probe)
    return read_records(path) if path.exists() else []


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") or "run"
