"""The `patch` verbs: list, check, build."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from shardwright.cli.common import layout_options, load
from shardwright.connect.project import open_project
from shardwright.errors import DeployError, ExitCode


@click.group()
def patch() -> None:
    """List, check and build the engine patches."""


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
@click.option("--wheel", type=click.Path(dir_okay=False), help="Take the engine's files from this wheel.")
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
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@click.option("--layout", "layout", help="Use the engine of this layout.")
@click.option("--wheel", type=click.Path(dir_okay=False), help="Use the files of this wheel.")
@click.option("--python", help="Use the package that this interpreter imports.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(
    ctx: click.Context,
    names: tuple[str, ...],
    layout: str | None,
    wheel: str | None,
    python: str | None,
    as_json: bool,
) -> None:
    """Say of every edit whether it fits an engine. Writes nothing."""
    from shardwright.campaign.overlays import engine_tree
    from shardwright.connect.trees import InstalledTree, SourceTree, WheelTree
    from shardwright.overlay.library import find_patch, list_patches
    from shardwright.overlay.report import as_expected, check_patch

    project = open_project(os.environ)
    roots = project.patch_roots()
    tree: SourceTree
    if wheel:
        tree = WheelTree(Path(wheel))
    elif python:
        tree = InstalledTree(python)
    else:
        tree = engine_tree(load(layout, ()).deployment)
    found = [(name, find_patch(name, roots)) for name in names]
    for name, item in found:
        if item is None:
            raise DeployError(f"there is no patch called {name}", fix="deploy patch list")
    patches = [item for _, item in found if item is not None] or list(list_patches(roots))
    rows, good = [], True
    for item in patches:
        verdicts = check_patch(item, tree)
        good = good and as_expected(item, tree.vllm_version, verdicts)
        rows += [
            {
                "patch": row.patch,
                "edit": row.edit,
                "engine": row.engine,
                "verdict": row.verdict.value,
                "symbol": row.symbol,
                "message": row.message,
                "fix": row.fix,
            }
            for row in verdicts
        ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        for row in rows:
            click.echo(f"{row['verdict']:<16} {row['patch']}/{row['edit']}  {row['symbol']}")
            if row["verdict"] != "OK":
                click.echo(f"  {row['message']}\n  fix: {row['fix']}")
    if not good:
        ctx.exit(ExitCode.REFUSED)
