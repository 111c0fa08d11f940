"""The one exception a user may see, and the exit codes of the command.

Every room raises `DeployError`; only `cli/` turns it into one printed line and an exit status.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit statuses of `deploy`; scripts may rely on them."""

    OK = 0
    REFUSED = 1
    """A gate refused, or the operation failed."""
    DRIFT = 2
    """Drift from the golden file, a degenerate trial, or a failed probe."""
    INCONCLUSIVE = 3
    HARNESS = 4
    """The harness itself failed: server down, contaminated run."""
    USAGE = 64
    """The request could not be understood: command line, layout or override."""
    TIMEOUT = 124
    INTERRUPTED = 130


class DeployError(Exception):
    """A failure with what is wrong, why it matters, and the next command.

    `what` is one line. `why` and `fix` are optional further lines; `fix` names a command or an edit.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "", code: ExitCode = ExitCode.REFUSED) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.code = code


class UsageError(DeployError):
    """The request could not be understood (exit 64)."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix, code=ExitCode.USAGE)
