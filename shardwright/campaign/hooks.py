"""The operator's own programs at fixed moments: `hooks/pre-start`, `post-ready`, `pre-stop` and `verdict`.

A hook is an executable file in the project's `hooks` folder. It gets facts as DEPLOY_* variables and no secret of the
layout. When it ends with another code than 0, what it stands before does not happen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from shardwright.connect.project import Project
from shardwright.errors import DeployError

if TYPE_CHECKING:
    from shardwright.resolve.deployment import Deployment

Moment = Literal["pre-start", "post-ready", "pre-stop", "verdict"]
MOMENTS: tuple[Moment, ...] = ("pre-start", "post-ready", "pre-stop", "verdict")
FOLDER = "hooks"


def facts_of(deployment: Deployment) -> dict[str, str]:
    """What every hook is told about a deployment."""
    return {
        "DEPLOY_LAYOUT": deployment.name,
        "DEPLOY_INSTANCE": deployment.instance_name,
        "DEPLOY_DIGEST": deployment.digest,
        "DEPLOY_RUNTIME": deployment.runtime,
        "DEPLOY_BASE_URL": deployment.base_url,
    }


def run(project: Project, moment: Moment, facts: Mapping[str, str], secrets: Iterable[str] = ()) -> None:
    """Run the hook of this moment, where there is one. Raises DeployError when it says no or cannot run."""
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
            why=f"{moment} of {facts.get('DEPLOY_LAYOUT', 'the deployment')} ends here, as the hook asks",
            fix=f"run {path} by hand to see why",
        )
