"""The symbol digests under which a patch was looked at, kept beside it in `verified.json`.

An anchor can stand in a function that upstream rewrote around it. The patch then still applies, and only a person or a
test can say whether it is still right; `deploy patch check --accept` records that it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError

VERIFIED_FILE = "verified.json"
DIGEST_DIGITS = 16


def read_verified(directory: str) -> Mapping[str, frozenset[str]] | None:
    """Edit to the symbol digests that were accepted; None where nothing was ever recorded, so nothing is judged."""
    file = Path(directory) / VERIFIED_FILE
    try:
        data = json.loads(file.read_text())
        return {str(edit): frozenset(map(str, digests)) for edit, digests in data.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError):
        raise DeployError(f"{file} cannot be read", fix=f"correct or remove {file}") from None


def accept(directory: str, digests: Iterable[tuple[str, str]]) -> None:
    """Add (edit, sha256 of its symbol) to what is recorded."""
    recorded = {edit: set(found) for edit, found in (read_verified(directory) or {}).items()}
    for edit, digest in digests:
        recorded.setdefault(edit, set()).add(digest[:DIGEST_DIGITS])
    lines = ",\n".join(f' "{edit}": {json.dumps(sorted(found))}' for edit, found in sorted(recorded.items()))
    file = Path(directory) / VERIFIED_FILE
    try:
        write_file(file, f"{{\n{lines}\n}}\n".encode())
    except OSError as error:
        raise DeployError(
            f"{file} cannot be written: {error.strerror}",
            fix="copy the patch into the patches/ of your project and accept it there",
        ) from None
