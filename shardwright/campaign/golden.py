"""Golden files: what a layout rendered to when somebody last accepted it."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from shardwright.campaign.request import Request
from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError
from shardwright.render.command import render
from shardwright.render.golden import golden_diff, golden_text

_FOLDER = "configs/golden"


class GoldenResult(Struct, frozen=True):
    layout: str
    diff: tuple[str, ...]
    updated: bool = False

    @property
    def drifted(self) -> bool:
        return bool(self.diff)


def compare_golden(request: Request) -> GoldenResult:
    """The drift of a layout against its golden file; DeployError when there is none."""
    file = request.project.find(_relative(request))
    if file is None:
        raise DeployError(
            f"there is no golden file {_relative(request)}",
            why="without it nothing shows that a default has moved",
            fix=f"deploy defaultcheck {request.deployment.name} --update",
        )
    golden = file.read_text(encoding="utf-8", errors="replace")
    return GoldenResult(request.deployment.name, tuple(golden_diff(golden, _text(request), request.deployment.name)))


def update_golden(request: Request) -> GoldenResult:
    """Write the golden file into the project."""
    target = request.project.root / _relative(request)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, _text(request).encode())
    return GoldenResult(request.deployment.name, (), updated=True)


def _text(request: Request) -> str:
    roots = [str(Path(base)) for base in request.project.search]
    return golden_text(request.deployment, render(request.deployment), roots)


def _relative(request: Request) -> str:
    return f"{_FOLDER}/{request.deployment.name}.json"
