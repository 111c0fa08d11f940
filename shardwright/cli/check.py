"""Verbs that judge before anything runs: `check`, `defaultcheck`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from msgspec.structs import asdict

from shardwright.campaign.golden import GoldenResult, compare_golden, update_golden
from shardwright.cli.common import facts_option, layout_options, load, show_finding
from shardwright.connect.project import open_project
from shardwright.errors import ExitCode, UsageError
from shardwright.layout.load import list_layouts
from shardwright.resolve.resolve import rule_warnings


@click.command()
@layout_options
@facts_option
@click.option("--in-image", is_flag=True, help="Also have the engine itself name its flags and parse the arguments.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict and the findings as JSON.")
@click.pass_context
def check(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    facts_file: Path | None,
    in_image: bool,
    as_json: bool,
) -> None:
    """Run every gate on a layout.

    Exit 1 when one refuses. What this machine cannot know is UNKNOWN, not accepted.
    """
    request = load(layout, sets, host=facts_file is None, facts_file=facts_file)
    unknown = request.facts.engine is None or request.facts.engine.table is None
    if in_image or (unknown and facts_file is None):
        from shardwright.campaign.in_engine import with_engine_parser, with_engine_table

        request = with_engine_table(request)
        request = with_engine_parser(request) if in_image else request
    assessment = request.assessment
    if as_json:
        rows = [asdict(finding) for finding in assessment.findings]
        click.echo(json.dumps({"verdict": assessment.verdict, "findings": rows}, indent=1, ensure_ascii=False))
    else:
        for note in rule_warnings(request.deployment):
            click.echo(f"rule {note.rule}: {note.message}")
        for finding in assessment.findings:
            show_finding(finding, err=False)
        click.echo(f"{request.deployment.name}: {assessment.verdict}")
    if assessment.refused:
        ctx.exit(ExitCode.REFUSED)


@click.command()
@layout_options
@click.option("--all", "every", is_flag=True, help="Every layout that has a golden file or is shipped.")
@click.option("--update", is_flag=True, help="Rewrite the golden file.")
@click.pass_context
def defaultcheck(ctx: click.Context, layout: str | None, sets: tuple[str, ...], every: bool, update: bool) -> None:
    """Compare argv and env with the golden file.

    Every argv token in its order and every env pair; drift prints a diff by token and exits 2. Environment overrides
    count: a shell that still has PP_SIZE set drifts.
    """
    if every and layout:
        raise UsageError("--all and a layout name exclude each other")
    project = open_project(os.environ)
    names: list[str | None] = [name for name, _ in list_layouts(project)] if every else [layout]
    results = []
    for name in names:
        request = load(name, sets)
        results.append(update_golden(request) if update else compare_golden(request))
    for result in results:
        _show(result)
    if any(result.drifted for result in results):
        ctx.exit(ExitCode.DRIFT)


def _show(result: GoldenResult) -> None:
    if not result.drifted:
        click.echo(f"{result.layout}: {'golden file written' if result.updated else 'no drift'}")
        return
    click.echo(f"{result.layout}: DRIFT", err=True)
    for line in result.diff:
        click.echo(line, err=True)
    click.echo(f"  fix: revert the change, or accept it with: deploy defaultcheck {result.layout} --update", err=True)
