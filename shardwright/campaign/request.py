"""From a layout's name to its assessed deployment: what every command begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from shardwright.connect.project import Project, open_project
from shardwright.errors import DeployError
from shardwright.facts.facts import Facts
from shardwright.facts.gather import gather_facts, spec_table
from shardwright.gates.assess import Assessment, assess
from shardwright.layout.load import load_layout
from shardwright.layout.overrides import AppliedOverride
from shardwright.layout.schema import Layout
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.resolve import resolve


class Request(Struct, frozen=True):
    """One layout as asked for, resolved and judged."""

    project: Project
    layout: Layout
    overrides: tuple[AppliedOverride, ...]
    facts: Facts
    deployment: Deployment
    assessment: Assessment


def prepare(
    name: str | None,
    environ: Mapping[str, str],
    sets: Sequence[str] = (),
    *,
    host: bool = False,
    project: Project | None = None,
    facts_file: Path | None = None,
) -> Request:
    """Load, gather, resolve, assess. With `host` the facts of this machine are gathered too, which costs a process.

    `facts_file` holds the facts of another machine, which then stand in for those of this one.
    """
    project = project or open_project(environ)
    layout, overrides = load_layout(name, project, environ, sets)
    given = None
    if facts_file is not None:
        from shardwright.facts.facts_file import read_facts_file, with_given_engine

        given = read_facts_file(facts_file)
        layout = with_given_engine(layout, given)
    facts = gather_facts(layout, project, host=host, given=given)
    table = spec_table(project)
    deployment = resolve(layout, facts, table, project)
    return Request(project, layout, overrides, facts, deployment, assess(deployment, facts, table))


def refuse_rejected(request: Request, what: str) -> None:
    """DeployError in the words of the gate that rejects, where one does; `what` says what does not happen then."""
    if request.assessment.refused:
        first = request.assessment.findings[0]
        fix = first.fix or f"deploy check {request.deployment.name}"
        raise DeployError(f"{what}, refused by {first.gate}: {first.message}", why=first.why, fix=fix)
