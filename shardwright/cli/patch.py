"""The `patch` verbs. Those for a deployment are here: list, build, diff, prove; those for a patch's author beside."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from shardwright.cli.common import layout_options, load
from shardwright.cli.patch_author import check, import_, refresh
from shardwright.connect.project import open_project
from shardwright.errors import DeployError, ExitCode


@click.group()
def patch() -> None:
    """List, check and build the engine patches."""


patch.add_command(check)
patch.add_command(import_)
patch.add_command(refresh)


@patch.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the patches that a layout can name."""
    from shardwright.overlay.library import list_patches

    rows = [
        {
            "id": item.id,
            "title": item.title,
            "versions": list(item.ranges()),
            "platforms": list(item.platforms),
            "remedies": list(item.remedies),
        }
        for item in list_patches(open_project(os.environ).patch_roots())
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(f"{row['id']}: {row['title']}")
        click.echo(f"  vLLM {' and '.join(row['versions'])}; platforms: {', '.join(row['platforms']) or 'any'}")


@patch.command()
@layout_options
@click.option("--wheel", metavar="VERSION|FILE", help="Take the engine's files from this release or .whl file.")
def build(layout: str | None, sets: tuple[str, ...], wheel: str | None) -> None:
    """Build the overlay that a layout mounts.

    The base files come from the layout's image (a created, never started container), from the installed package for
    the local runtime, or from --wheel. Every anchor must be found exactly as often as declared; otherwise nothing is
    written.
    """
    from shardwright.campaign.overlays import build_for

    request = load(layout, sets)
    built = build_for(request.deployment, wheel)
    if built is None:
        click.echo(f"{request.deployment.name} names no patches")
        return
    for file in built.lock.files:
        names = ", ".join(dict.fromkeys(edit.patch for edit in file.edits))
        click.echo(f"patched {file.relative}  {file.result_sha256[:12]}  {names}")
    for added in built.lock.additive:
        click.echo(f"added   {added.relative}  {added.result_sha256[:12]}")
    click.echo(f"lock    {Path(built.directory) / 'overlay.lock.json'}  {built.lock.lock_sha256[:12]}")


@patch.command()
@layout_options
@click.option("--wheel", metavar="VERSION|FILE", help="Take the engine's files from this release or .whl file.")
def diff(layout: str | None, sets: tuple[str, ...], wheel: str | None) -> None:
    """Show what the patches of a layout change in its engine."""
    from shardwright.campaign.overlays import engine_tree
    from shardwright.overlay.refresh import diff_patches

    deployment = load(layout, sets).deployment
    if deployment.unknown_patches:
        raise DeployError(f"the patch {deployment.unknown_patches[0]} does not exist here", fix="deploy patch list")
    if not deployment.patches:
        click.echo(f"{deployment.name} names no patches")
        return
    click.echo(diff_patches(deployment.patches, engine_tree(deployment, wheel)), nl=False)


@patch.command()
@layout_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def prove(ctx: click.Context, layout: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Prove that the running engine of a layout runs its patches.

    Four rungs, each on its own: the bytes in place equal the lock; the interpreter imports those files; the served
    model runs through the patched symbols; the log has the hit line of every rank that must have one.
    """
    from shardwright.campaign.proof import prove_deployment

    proof = prove_deployment(load(layout, sets))
    if as_json:
        click.echo(json.dumps(proof.as_data(), indent=1))
    else:
        for row in proof.rows:
            place = f"{row.patch}  {row.subject}" if row.patch else row.subject
            click.echo(f"{row.rung:<7} {row.verdict:<14} {place}")
            if row.verdict != "OK":
                click.echo(f"  {row.message}" + (f"\n  fix: {row.fix}" if row.fix else ""))
        click.echo(f"{proof.instance}: {'proven' if proof.proven else 'not proven'}")
    if not proof.proven:
        ctx.exit(ExitCode.INCONCLUSIVE if proof.only_unknown else ExitCode.REFUSED)
