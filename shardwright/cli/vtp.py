"""The `vtp` verbs: plan, sidecar, qualify odd tensor parallelism."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from shardwright.connect.project import open_project
from shardwright.errors import ExitCode, UsageError


@click.group()
def vtp() -> None:
    """Plan and qualify odd tensor parallelism."""


@vtp.command()
@click.argument("target", metavar="MODEL|LAYOUT")
@click.option("--tp", type=int, help="Tensor parallel size, 2 to 24; a layout brings its own.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(target: str, tp: int | None, as_json: bool) -> None:
    """Print how a model's axes are padded and cut at a TP.

    MODEL is a checkpoint folder or the name of a bundled model; its config.json and safetensors headers are read, no
    weight is. Ranks are cut in each tensor's own storage unit.
    """
    from shardwright.campaign.vtp import find_target, plan_for
    from shardwright.campaign.vtp_report import plan_json, plan_lines

    project = open_project(os.environ)
    made = plan_for(find_target(target, tp, project, os.environ), project)
    if as_json:
        click.echo(json.dumps(plan_json(made), indent=1))
        return
    for line in plan_lines(made):
        click.echo(line)


@vtp.command()
@click.argument("target", metavar="MODEL|LAYOUT|SIDECAR")
@click.option("--tp", type=int, help="Tensor parallel size, 2 to 24; a layout brings its own.")
@click.option("--out", type=click.Path(file_okay=False), help="Write the sidecar into this folder.")
@click.option("--check", "check_only", is_flag=True, help="Check the sidecar in this folder; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def sidecar(ctx: click.Context, target: str, tp: int | None, out: str | None, check_only: bool, as_json: bool) -> None:
    """Write, or check, the folder that the engine is given as its model.

    It holds a config.json with padded sizes and links to the checkpoint, a few kilobytes; target and MTP draft both
    read it. A sidecar is refused where the checkpoint has moved, the TP is another, or vocab_size was padded.
    """
    from msgspec.structs import asdict

    from shardwright.campaign.vtp import find_target, plan_for
    from shardwright.campaign.vtp_sidecar import check_sidecar, write_sidecar

    if check_only:
        if out is not None:
            raise UsageError("--check and --out exclude each other")
        made, problems = check_sidecar(Path(target), tp)
    else:
        if out is None:
            raise UsageError("--out DIR is missing", fix="name the folder that the engine will be given as its model")
        project = open_project(os.environ)
        found = find_target(target, tp, project, os.environ)
        if found.directory is None:
            raise UsageError(f"the checkpoint of {target} is not on this host", fix="name its folder")
        written = write_sidecar(found.directory, plan_for(found, project), Path(out))
        made, problems = check_sidecar(Path(written.directory), found.tp)
    if as_json:
        click.echo(json.dumps({**asdict(made), "problems": problems}, indent=1))
    else:
        click.echo(f"{made.directory}: TP={made.tp}, {made.links} links to {made.checkpoint}, {made.size_bytes} bytes")
        for problem in problems:
            click.echo(f"REFUSED sidecar: {problem}", err=True)
    if problems:
        if not as_json:
            click.echo("  fix: deploy vtp sidecar MODEL --tp N --out DIR, from where the checkpoint is now", err=True)
        ctx.exit(ExitCode.REFUSED)
