"""The committed list of mutants that no test can tell from the code they were made of.

A mutant stands on a line of its own, as `run.py --keys` prints it, and the reason indented below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from tests.mutation.catalogue import Mutant


def read_equivalents(file: Path) -> dict[str, str]:
    """Key to reason. ValueError for an entry without a reason, a reason without an entry, and an entry told twice."""
    found: dict[str, str] = {}
    key = ""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            if line in found or (key and not found[key]):
                raise ValueError(f"{file.name}:{number}: a repeated entry, or one above it without a reason")
            key = line
            found[key] = ""
        elif key:
            found[key] = f"{found[key]} {line.strip()}".strip()
        else:
            raise ValueError(f"{file.name}:{number}: a reason without an entry")
    if key and not found[key]:
        raise ValueError(f"{file.name}: the last entry has no reason")
    return found


def stale(equivalents: Iterable[str], mutants: Collection[Mutant], survivors: Collection[Mutant]) -> list[str]:
    """Entries that are no mutant any more, and those of judged mutants that a test does kill."""
    keys = {mutant.key for mutant in mutants}
    alive = {mutant.key for mutant in survivors}
    return [key for key in equivalents if key not in keys or key not in alive]
