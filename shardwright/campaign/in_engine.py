"""Ask the engine that will run: its own flags and variables, and whether its parser takes the command line."""

from __future__ import annotations

from msgspec.structs import replace

from shardwright.campaign.overlays import engine_tree
from shardwright.campaign.request import Request
from shardwright.errors import DeployError
from shardwright.facts.engine import engine_facts
from shardwright.facts.gather import spec_table
from shardwright.gates.assess import assess
from shardwright.gates.finding import Finding, by_severity
from shardwright.runtime.engine_parser import parse_problem

GATE = "engine-parser"


def with_engine_table(request: Request) -> Request:
    """The request judged by the tables of its own engine, where that lies on this host; unchanged where it does not."""
    try:
        tree = engine_tree(request.deployment)
        engine = engine_facts(request.layout, request.project, tree=tree)
    except DeployError:
        return request
    facts = replace(request.facts, engine=engine)
    return replace(request, facts=facts, assessment=assess(request.deployment, facts, spec_table(request.project)))


def with_engine_parser(request: Request) -> Request:
    """The request with the verdict of the engine's own parser over the exact command line, overlays mounted.

    Raises DeployError when the engine cannot be asked.
    """
    assessment = request.assessment
    problem = parse_problem(request.deployment)
    if problem:
        found = Finding(
            GATE, "reject", f"the engine's own parser refuses: {problem}", fix="correct serve: in the layout"
        )
    else:
        found = Finding(GATE, "info", "the engine's own parser takes the command line")
    findings = by_severity((*assessment.findings, found))
    return replace(request, assessment=replace(assessment, findings=findings))
