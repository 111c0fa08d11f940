"""Where the loop detector must keep quiet: a committed list of files of others, and a few documents of our own."""

from __future__ import annotations

import gettext
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "data"
LIST = DATA / "loop_corpus.json"
LONGEST_CHARS = 40_000


@dataclass(frozen=True)
class Document:
    """One entry of the list. `path` is None where this machine has no such file."""

    kind: str
    name: str
    path: Path | None
    sha256: str

    @property
    def as_drawn(self) -> bool:
        """Whether the file is the very one that was drawn, not one of another version."""
        assert self.path is not None
        return hashlib.sha256(self.path.read_bytes()).hexdigest().startswith(self.sha256)

    def text(self) -> str:
        assert self.path is not None
        if self.path.suffix == ".mo":
            with self.path.open("rb") as file:
                catalogue: Any = gettext.GNUTranslations(file)
            return "\n".join(str(text) for text in catalogue._catalog.values())[:LONGEST_CHARS]
        return self.path.read_text(encoding="utf-8", errors="replace")[:LONGEST_CHARS]


def listed(part: str = "documents") -> list[Document]:
    """The committed list: `documents`, or `repeats`, which repeat themselves to the letter."""
    rows = json.loads(LIST.read_text())[part]
    return [Document(kind, f"{dist}: {path}", _find(dist, path), sha) for kind, dist, path, sha in rows]


def own() -> list[Document]:
    """Poems, songs, tables and Chinese texts that lie beside the list."""
    return [Document("own", path.name, path, "") for path in sorted((DATA / "documents").iterdir())]


def _find(dist: str, path: str) -> Path | None:
    if dist == "python":
        found = Path(os.__file__).parent / path
        return found if found.is_file() else None
    return _files(dist).get(path)


@cache
def _files(dist: str) -> dict[str, Path]:
    try:
        installed = distribution(dist)
    except PackageNotFoundError:
        return {}
    found = {}
    for file in installed.files or ():
        head, slash, rest = str(file).partition("/")
        name = f"*.dist-info/{rest}" if slash and head.endswith(".dist-info") else str(file)
        path = Path(str(installed.locate_file(file)))
        if path.is_file():
            found[name] = path
    return found
