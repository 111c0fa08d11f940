"""Verbs about what was done and what it proves: `evidence`, `audit`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from shardwright.errors import ExitCode


@click.group()
def evidence() -> None:
    """Check the evidence of a run."""


@evidence.command("verify")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify_(ctx: click.Context, run: Path, as_json: bool) -> None:
    """Compute every number of a run again from its stored trials.

    Needs neither the server nor the engine. Exit 0 when hashes, reports and verdict all agree with the trials, 2 with
    a list of the differences, 3 when the run did not end.
    """
    from shardwright.campaign.evidence_verify import verify_bundle

    differences = verify_bundle(run)
    if as_json:
        click.echo(json.dumps({"run": str(run), "intact": not differences, "differences": differences}, indent=1))
    elif differences:
        click.echo(f"{run}: {len(differences)} differences")
        for line in differences:
            click.echo(f"  {line}")
    else:
        click.echo(f"{run}: intact; every number follows from its trials")
    if differences:
        ctx.exit(ExitCode.DRIFT)


@click.command()
@click.argument("layout", required=False, metavar="[LAYOUT]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def audit(layout: str | None, as_json: bool) -> None:
    """List who started, stopped, accepted and waived what, and when."""
    from shardwright.campaign.audit import entries
    from shardwright.connect.project import open_project

    rows = entries(open_project(os.environ).state_dir(), layout)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo("nothing is on record")
    for row in rows:
        waived = f"  waived: {', '.join(row['waived'])}" if row["waived"] else ""
        detail = f"  {row['detail']}" if row["detail"] else ""
        click.echo(f"{row['at']}  {row['user']}@{row['host']}  {row['verb']:<8} {row['instance']}{detail}{waived}")
