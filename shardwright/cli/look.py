"""Verbs that look and change nothing: `layouts`, `cmd`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from msgspec.structs import asdict

from shardwright.campaign.request import Request
from shardwright.cli.common import facts_option, layout_options, load, show_findings
from shardwright.errors import DeployError, ExitCode
from shardwright.render.command import RenderedCommand, render


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def layouts(as_json: bool) -> None:
    """List the layouts that can be named."""
    from shardwright.campaign.request import prepare
    from shardwright.connect.project import open_project
    from shardwright.layout.load import default_layout, list_layouts

    project = open_project(os.environ)
    default = default_layout(project, os.environ) if project.find("configs/deploy.yaml") else ""
    rows = []
    for name, file in list_layouts(project):
        try:
            layout = prepare(str(file), {}, project=project).layout
            split = f" [{layout.parallel.layer_partition}]" if layout.parallel.layer_partition else ""
            shape = f"TP={layout.parallel.tensor} PP={layout.parallel.pipeline}{split}"
            rows.append({"name": name, "default": name == default, "status": layout.status, "shape": shape})
        except DeployError as error:
            rows.append({"name": name, "default": name == default, "status": "broken", "shape": error.what})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    width = max((len(str(row["name"])) for row in rows), default=0)
    for row in rows:
        star = "*" if row["default"] else " "
        click.echo(f"{star} {str(row['name']).ljust(width)}  {str(row['status']).ljust(8)}  {row['shape']}")


@click.command()
@layout_options
@facts_option
@click.option("--json", "as_json", is_flag=True, help="Print argv, env, mounts and findings as JSON.")
@click.option("--explain", is_flag=True, help="Print a table of every token and the origin that set it.")
@click.pass_context
def cmd(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    facts_file: Path | None,
    as_json: bool,
    explain: bool,
) -> None:
    """Print the exact command line of a layout.

    The gates run first, as they do before start. A gate whose facts this machine does not have is UNKNOWN and stops
    nothing here.
    """
    request = load(layout, sets, facts_file=facts_file)
    command = render(request.deployment)
    if as_json:
        click.echo(json.dumps(_as_json(request, command), indent=1, ensure_ascii=False))
    else:
        show_findings(request)
        if not request.assessment.refused:
            _print_command(command, explain)
            if command.secrets_file is not None:
                names = ", ".join(request.deployment.secrets)
                click.echo(
                    f"note secrets: `deploy start` writes {names} to the mounted {command.secrets_file}", err=True
                )
    if request.assessment.refused:
        ctx.exit(ExitCode.REFUSED)


def _print_command(command: RenderedCommand, explain: bool) -> None:
    if not explain:
        from shardwright.render.shell import shell_lines

        click.echo(shell_lines(command))
        return
    from shardwright.render.explain import explain_rows

    rows = explain_rows(command)
    origin_width = max(len(row.origin) for row in rows)
    for row in rows:
        click.echo(f"{row.kind.ljust(8)}  {row.origin.ljust(origin_width)}  {row.tokens}")


def _as_json(request: Request, command: RenderedCommand) -> dict[str, object]:
    deployment = request.deployment
    return {
        "layout": deployment.name,
        "status": deployment.status,
        "runtime": deployment.runtime,
        "instance": deployment.instance_name,
        "digest": deployment.digest,
        "verdict": request.assessment.verdict,
        "argv": list(command.argv),
        "parts": [
            {"kind": part.kind, "tokens": list(part.tokens), "origin": str(part.origin)} for part in command.parts
        ],
        "env": {pair.name: pair.value for pair in deployment.env},
        "mounts": [
            {"source": mount.source, "target": mount.target, "readonly": mount.readonly, "purpose": mount.purpose}
            for mount in deployment.mounts
        ],
        "secrets": list(deployment.secrets),
        "overrides": [str(override) for override in request.overrides],
        "findings": [asdict(finding) for finding in request.assessment.findings],
    }
