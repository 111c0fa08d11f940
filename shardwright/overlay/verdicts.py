"""What can be said of one edit on one engine tree, and the error that carries all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardwright.errors import DeployError


class Verdict(StrEnum):
    OK = "OK"
    ANCHOR_GONE = "ANCHOR_GONE"
    """The text to find is not in the symbol."""
    ANCHOR_AMBIGUOUS = "ANCHOR_AMBIGUOUS"
    """It is there, but not exactly as often as declared."""
    SYMBOL_GONE = "SYMBOL_GONE"
    FILE_GONE = "FILE_GONE"
    CONFLICT = "CONFLICT"
    """Two edits want the same lines, or two patches exclude each other."""
    BLOCKED_BY = "BLOCKED_BY"
    """A patch that it requires is missing."""
    NO_OP = "NO_OP"
    """The edit would change nothing that runs."""
    BREAKS_SYNTAX = "BREAKS_SYNTAX"
    RESIDUE = "RESIDUE"
    """The base is not pristine: it carries what a build writes."""
    OBSOLETE = "OBSOLETE"
    """Upstream already has the change."""
    ALREADY = "ALREADY"
    """The body already stands where the edit would put it, though other edits of the patch are missing."""
    SYMBOL_CHANGED = "SYMBOL_CHANGED"
    """The anchor fits, but nobody has looked at the patch on this text of the symbol."""
    BREAKS_IMPORT = "BREAKS_IMPORT"
    """The inserted code imports or names what this engine does not have."""
    UNREACHED = "UNREACHED"
    """It would apply, to code that the model does not run through."""
    UNMOUNTED = "UNMOUNTED"
    """The running engine does not have the file as a mount."""
    STALE_MOUNT = "STALE_MOUNT"
    """The running engine holds an earlier file than the host."""
    IMAGE_CHANGED = "IMAGE_CHANGED"
    """The overlay was built from another engine."""
    TAMPERED = "TAMPERED"
    """The file on the host is not what was built."""
    NOT_LIVE = "NOT_LIVE"
    """The engine imports another file, runs old bytecode, or a rank gave no hit line."""
    NOT_FOR_VERSION = "NOT_FOR_VERSION"
    """The patch has no place for this engine version."""


@dataclass(frozen=True)
class EditVerdict:
    """The verdict on one edit; `edit` is empty for a verdict on the whole patch.

    `engine` names the version and the tree, `symbol` is `module:qualified.name`, `fix` the next command or edit.
    `reached`: whether the model runs through the symbol, None where that is not known.
    """

    patch: str
    edit: str
    engine: str
    verdict: Verdict
    symbol: str
    message: str
    fix: str
    reached: bool | None = None

    def __str__(self) -> str:
        place = "/".join(part for part in (self.patch, self.edit) if part)
        return " ".join(part for part in (place, self.verdict.value, self.symbol) if part) + f": {self.message}"


class OverlayError(DeployError):
    """Edits that cannot be placed; `verdicts` holds every problem of every patch, `why` one line for each."""

    def __init__(self, what: str, verdicts: Sequence[EditVerdict]) -> None:
        self.verdicts = tuple(verdicts)
        super().__init__(what, why="\n".join(str(verdict) for verdict in self.verdicts), fix=self.verdicts[0].fix)
