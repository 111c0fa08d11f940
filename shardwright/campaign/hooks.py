"""The operator's own programs at fixed moments: `hooks/pre-start`, `post-ready`, `pre-stop` and `verdict`.

A hook is an executable file in the project's `hooks` folder. It gets facts as DEPLOY_* variables and no secret of the
layout. When it ends with another code than 0, what it stands before does not happen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardwright.campaign.records import StartRecord, record_of
from shardwright.connect.project import Project
from shardwright.errors import DeployError

if TYPE_CHECKING:
    from shardwright.resolve.deployment import Deployment

Moment = Literal["pre-start", "post-ready", "pre-stop", "verdict"]
FOLDER = "hooks"


def run_for(
    project: Project, moment: Moment, deployment: Deployment, *, run: Path | None = None, verdict: str = ""
) -> None:
    """Run the hook of this moment for a deployment, where there is one.

    `run` is the folder of its evidence. Raises DeployError when the hook says no or cannot run.
    """
    evidence = {"DEPLOY_RUN_DIR": str(run)} if run else {}
    said = {"DEPLOY_VERDICT": verdict} if verdict else {}
    started = record_of(deployment, 0.0)
    _run(project, moment, _facts(started, started.instance) | evidence | said, deployment.secrets)


def run_for_started(project: Project, moment: Moment, record: StartRecord, instance: str) -> None:
    """As `run_for`, for an instance that was started before. The digest of one that is not on record is empty."""
    _run(project, moment, _facts(record, instance), record.secrets)


def _facts(record: StartRecord, instance: str) -> dict[str, str]:
    return {
        "DEPLOY_LAYOUT": record.layout,
        "DEPLOY_INSTANCE": instance,
        "DEPLOY_DIGEST": record.digest if record.instance == instance else "",
        "DEPLOY_RUNTIME": record.runtime,
        "DEPLOY_BASE_URL": record.base_url,
    }


def _run(project: Project, moment: Moment, facts: Mapping[str, str], secrets: Iterable[str]) -> None:
    path = project.root / FOLDER / moment
    if not path.exists():
        return
    if not os.access(path, os.X_OK):
        raise DeployError(
            f"the hook {FOLDER}/{moment} is not executable",
            why="a hook that does not run would be silently skipped",
            fix=f"chmod +x {path}, or remove it",
        )
    import subprocess

    withheld = set(secrets)
    environment = {name: value for name, value in os.environ.items() if name not in withheld}
    environment |= {**facts, "DEPLOY_HOOK": moment, "DEPLOY_PROJECT": str(project.root)}
    try:
        code = subprocess.run([str(path)], env=environment, cwd=project.root, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        raise DeployError(f"the hook {FOLDER}/{moment} cannot run: {error.strerror}", fix=f"correct {path}") from None
    if code != 0:
        raise DeployError(
            f"the hook {FOLDER}/{moment} says no (exit code {code})",
            why=f"{moment} of {facts['DEPLOY_LAYOUT']} ends here, as the hook asks",
            fix=f"run {path} by hand to see why",
        )
