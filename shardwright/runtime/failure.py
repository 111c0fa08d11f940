"""Why an engine failed, told from its log: the first traceback, what is known about it, and the next command."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.errors import DeployError
from shardwright.runtime.base import EngineState
from shardwright.runtime.doctor import Diagnosis, diagnose
from shardwright.runtime.loglines import FirstTraceback, first_traceback
from shardwright.runtime.phases import Phase

_LAST_LINES = 5


class EngineFailedError(DeployError):
    """An engine that did not become ready. `why` shows an excerpt; `traceback` and `diagnoses` hold all of it."""

    def __init__(
        self,
        what: str,
        *,
        why: str,
        fix: str,
        phase: Phase,
        traceback: FirstTraceback | None,
        diagnoses: tuple[Diagnosis, ...],
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.phase = phase
        self.traceback = traceback
        self.diagnoses = diagnoses


def explain(what: str, log: Iterable[str], state: EngineState, phase: Phase, layout: str) -> EngineFailedError:
    """The failure `what` with its cause; `log` is the whole log, `layout` the name that commands take."""
    lines = tuple(log)
    traceback = first_traceback(lines)
    diagnoses = tuple(diagnose(lines, state.exit_code))
    causes = [diagnosis for diagnosis in diagnoses if diagnosis.kind == "cause"]
    return EngineFailedError(
        what,
        why="\n".join(_reasons(lines, traceback, causes)),
        fix=_fix(causes, layout),
        phase=phase,
        traceback=traceback,
        diagnoses=diagnoses,
    )


def _reasons(lines: tuple[str, ...], traceback: FirstTraceback | None, causes: list[Diagnosis]) -> list[str]:
    reasons = [f"{cause.cause} [{cause.id}]" for cause in causes[:1]]
    if traceback is not None:
        where = f" of {traceback.worker}" if traceback.worker else ""
        return [*reasons, f"first traceback{where}:", *(f"  {line}" for line in traceback.excerpt())]
    evidence = causes[0].evidence_line if causes else ""
    if evidence and not evidence.startswith("exit code"):
        return [*reasons, f"the log says: {evidence}"]
    last = [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
    if not last:
        return [*reasons, "the log is empty"]
    return [*reasons, "the log has no traceback; it ends with:", *(f"  {line[:300]}" for line in last)]


def _fix(causes: list[Diagnosis], layout: str) -> str:
    logs = f"deploy logs {layout}"
    if not causes:
        return logs
    command = "" if causes[0].command == "deploy logs" else f" ({causes[0].command})"
    return f"{causes[0].fix}{command}; the whole log: {logs}"
