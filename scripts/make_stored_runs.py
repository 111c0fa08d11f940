"""Make the runs below tests/data again: `up` of a healthy stand-in, and a comparison whose candidate is stale.

    python scripts/make_stored_runs.py [FOLDER]

Needs no engine. The project lies in FOLDER (/tmp/project, removed at the end) and the note of who ran it says
operator@node, so that a stored run tells nothing of the machine that made it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
STAND_IN = ROOT / "tests" / "unit" / "campaign"
NAMES = {"up": "run-up", "ab": "run-ab"}
_AS_OPERATOR = (
    "import sys; from shardwright.connect import locks; locks.performer = lambda: ('operator', 'node'); "
    "from shardwright.cli.main import main; main(sys.argv[1:])"
)
_ASKED = ("smoke", "needle")


def main() -> None:
    project = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/project")
    project.mkdir()
    try:
        _make(project)
    finally:
        subprocess.run([sys.executable, "-c", _AS_OPERATOR, "stop", "stub"], env=_environment(project), cwd=project)
        shutil.rmtree(project)


def _make(project: Path) -> None:
    sys.path[:0] = [str(ROOT), str(STAND_IN)]
    import campaign_stage

    engine = project / "engine"
    shutil.copytree(campaign_stage.STUB, engine, ignore=shutil.ignore_patterns("__pycache__"))
    campaign_stage.STUB = engine
    stage = campaign_stage.Stage(project)
    unasked = {name: "not stored, to be small" for name in (*campaign_stage.UNASKED, "smoke") if name not in _ASKED}
    stage.layout(probes={"not_applicable": unasked})
    candidate = ("--yes", "--set", "env.STUB_MODE=stale-index")
    for status, words in (
        (0, ("up", "stub")),
        (0, ("rebalance", "control", "--layout", "stub", "--mode", "default")),
        (0, ("rebalance", "boot", "--layout", "stub", *candidate)),
        (2, ("rebalance", "verify", "--layout", "stub")),
        (2, ("rebalance", "verdict", "--layout", "stub")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", _AS_OPERATOR, *words],
            env={**_environment(project), "DEPLOY_PYTHON": str(stage.python)},
            cwd=project,
        )
        if done.returncode != status:
            raise SystemExit(f"deploy {' '.join(words)} exits {done.returncode}, expected {status}")
    for kind, name in NAMES.items():
        (run,) = (project / "runs").glob(f"*-stub-{kind}")
        shutil.rmtree(DATA / name, ignore_errors=True)
        shutil.copytree(run, DATA / name)


def _environment(project: Path) -> dict[str, str]:
    return {**os.environ, "DEPLOY_PROJECT": str(project), "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    main()
