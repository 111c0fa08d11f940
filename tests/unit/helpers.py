"""What the tests of the core rooms share: small projects, requests, and the command in process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardwright.campaign.request import Request, prepare
from shardwright.connect.project import Project, open_project
from shardwright.gates.finding import Finding
from shardwright.layout.overrides import ENV_RULES

ROOT = Path(__file__).resolve().parents[2]
OVERRIDES = (*(rule.variable for rule in ENV_RULES), "PORT", "ALLOW_UNVERIFIED_PP", "DEPLOY_LAYOUT", "DEPLOY_PROJECT")
SHIPPED = tuple(sorted(file.stem for file in (ROOT / "configs/layouts").glob("*.yaml")))

BASE = """\
schema: shardwright/v1
name: demo
model: {path: org/model}
engine: {image: "engine:1", vllm: "0.30.0"}
"""
GLM = """\
schema: shardwright/v1
name: demo
extends: base/glm53-a100.yaml
"""
LOCAL = """\
schema: shardwright/v1
name: demo
extends: base/tiny-cpu.yaml
parallel: {pipeline: 2}
patches: [pp-cpu-eager]
"""


class Result(NamedTuple):
    """What one call of the command came to."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    def findings(self, gate: str) -> list[dict[str, str]]:
        """The findings of one gate in the JSON of `cmd` or `check`."""
        return [finding for finding in self.data["findings"] if finding["gate"] == gate]


def clean_environment(**settings: str) -> dict[str, str]:
    """The environment of this process without overrides, and with `settings`."""
    return {**{name: value for name, value in os.environ.items() if name not in OVERRIDES}, **settings}


def write_layout(root: Path, text: str, name: str = "demo") -> Path:
    """`text` as a layout of the project at `root`."""
    file = root / "configs" / "layouts" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def project_at(root: Path) -> Project:
    return open_project({"DEPLOY_PROJECT": str(root)})


def request_for(root: Path, text: str, environ: Mapping[str, str] | None = None, sets: Sequence[str] = ()) -> Request:
    """A layout text, prepared in a project of its own: read, resolved and judged."""
    write_layout(root, text)
    return prepare("demo", environ or {}, sets, project=project_at(root))


def findings(request: Request, gate: str) -> list[Finding]:
    return [finding for finding in request.assessment.findings if finding.gate == gate]


def argv(request: Request) -> list[str]:
    """The engine's own arguments, flat."""
    return [token for argument in request.deployment.engine_args for token in argument.tokens]


def env(request: Request) -> dict[str, str]:
    return {pair.name: pair.value for pair in request.deployment.env}


def torn_in_last_trial(text: str) -> str:
    """A file of trials as a writer leaves it that is killed within the line of its last trial."""
    lines = text.splitlines()
    last = max(number for number, line in enumerate(lines) if json.loads(line)["kind"] == "trial")
    return "\n".join([*lines[:last], lines[last][:-5]])
