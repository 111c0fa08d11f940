"""The `patch` verbs of a patch's author: check, import, refresh."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardwright.cli.common import load
from shardwright.connect.project import Project, open_project
from shardwright.errors import DeployError, ExitCode, UsageError

if TYPE_CHECKING:
    from shardwright.connect.trees import SourceTree
    from shardwright.overlay.patch import Patch
    from shardwright.overlay.refresh import Refreshed
    from shardwright.overlay.verdicts import EditVerdict


@click.command()
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@click.option("--layout", "layout", help="Use the engine of this layout.")
@click.option("--wheel", "wheels", multiple=True, metavar="VERSION|FILE", help="Use this release or .whl file; repeat.")
@click.option("--image", "images", multiple=True, help="Use the files of this image; repeat.")
@click.option("--python", "pythons", multiple=True, help="Use the package that this interpreter imports; repeat.")
@click.option("--platform", type=click.Choice(["cuda", "rocm", "cpu"]), help="Judge for this platform only.")
@click.option("--accept", is_flag=True, help="Record the symbols as they are here as looked at.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(
    ctx: click.Context,
    names: tuple[str, ...],
    layout: str | None,
    wheels: tuple[str, ...],
    images: tuple[str, ...],
    pythons: tuple[str, ...],
    platform: str | None,
    accept: bool,
    as_json: bool,
) -> None:
    """Say of every edit whether it fits each engine and is run there.

    Exit 0 only if each patch got the verdict on each engine that it declares under `expect`. Writes nothing, unless
    with --accept.
    """
    from shardwright.campaign.checks import check_kept
    from shardwright.campaign.overlays import cache_of
    from shardwright.overlay.reach import Reacher
    from shardwright.overlay.report import accept_symbols, as_expected

    project = open_project(os.environ)
    patches = _patches(names, project)
    trees = _trees(project, wheels, images, pythons)
    if not trees:
        from shardwright.campaign.overlays import engine_tree

        deployment = load(layout, ()).deployment
        platform = platform or deployment.platform
        trees = [engine_tree(deployment)]
    rows: list[EditVerdict] = []
    good = True
    for tree in trees:
        reacher = Reacher(tree)
        for item in patches:
            if accept and item.supports(tree.vllm_version):
                accept_symbols(item, tree)
            verdicts = check_kept(item, tree, platform, reacher, cache_of(project.root))
            good = good and as_expected(item, tree.vllm_version, verdicts)
            rows += verdicts
    if as_json:
        click.echo(json.dumps([_as_json(row) for row in rows], indent=1))
    else:
        _show(rows)
    if not good:
        ctx.exit(ExitCode.REFUSED)


@click.command("import")
@click.argument("diff", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--id", "patch_id", required=True, help="Name of the new patch.")
@click.option("--title", required=True, help="One line: what it does.")
@click.option("--why", required=True, help="What goes wrong without it.")
@click.option("--inert-when", default="never", show_default=True, help="The setting in which it changes nothing.")
@click.option("--wheel", metavar="VERSION|FILE", help="The engine that the diff was made for: a release or .whl file.")
@click.option("--image", help="The engine that the diff was made for, as an image.")
@click.option("--layout", "layout", help="The engine that the diff was made for, by a layout.")
def import_(
    diff: Path,
    patch_id: str,
    title: str,
    why: str,
    inert_when: str,
    wheel: str | None,
    image: str | None,
    layout: str | None,
) -> None:
    """Turn a unified diff into a patch of this project.

    Line numbers become symbols and short anchors. Each edit is tried on the engine's own file and kept only if it
    gives exactly what the diff says.
    """
    from shardwright.overlay.edits import read_text
    from shardwright.overlay.importer import import_diff

    project = open_project(os.environ)
    tree = _one_tree(project, wheel, image, layout)
    directory = project.root / "patches" / patch_id
    made = import_diff(read_text(diff), tree, directory, title=title, why=why, inert_when=inert_when)
    for edit in made.edits_for(tree.vllm_version):
        click.echo(f"{edit.op:<13} {edit.module}{':' + edit.symbol if edit.symbol else ''}")
    click.echo(f"{directory}: {len(made.edits)} edits; next: deploy patch check {patch_id}")


@click.command()
@click.argument("name", metavar="PATCH")
@click.option("--wheel", metavar="VERSION|FILE", help="The new engine: a release or .whl file.")
@click.option("--image", help="The new engine, as an image.")
@click.option("--base", metavar="VERSION|FILE", help="An engine on which it fits; else the newest overlay's base.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def refresh(
    ctx: click.Context, name: str, wheel: str | None, image: str | None, base: str | None, as_json: bool
) -> None:
    """Carry a patch to a new engine by three-way merge.

    Prints where each edit goes there, as a variant to add to patch.yaml. What does not merge is left in
    overlays/refresh/ with both sides marked.
    """
    from shardwright.connect.atomic import write_file
    from shardwright.overlay.bases import stored_base
    from shardwright.overlay.refresh import refresh_patch

    project = open_project(os.environ)
    (item,) = _patches((name,), project)
    new = _one_tree(project, wheel, image, None)
    old: SourceTree | None = stored_base(item.id, project.root / "overlays")
    if base is not None:
        (old,) = _trees(project, (base,), (), ())
    if old is None:
        raise DeployError(
            f"there is no kept base of {item.id}",
            why="a three-way merge needs the file that the patch was made for",
            fix=f"deploy patch refresh {item.id} --base VERSION",
        )
    found = refresh_patch(item, old, new)
    folder = project.root / "overlays" / "refresh" / f"{item.id}-{new.vllm_version}"
    left = [str(folder / row.relative) if row.conflict else "" for row in found]
    for row, file in zip(found, left, strict=True):
        if file:
            write_file(Path(file), row.conflict.encode())
    _show_refreshed(found, left, as_json)
    if any(row.state == "conflict" for row in found):
        ctx.exit(ExitCode.REFUSED)


def _patches(names: tuple[str, ...], project: Project) -> list[Patch]:
    from shardwright.overlay.library import find_patch, list_patches

    roots = project.patch_roots()
    found = [(name, find_patch(name, roots)) for name in names]
    for name, item in found:
        if item is None:
            raise UsageError(f"there is no patch called {name}", fix="deploy patch list")
    return [item for _, item in found if item is not None] or list(list_patches(roots))


def _trees(
    project: Project, wheels: tuple[str, ...], images: tuple[str, ...], pythons: tuple[str, ...]
) -> list[SourceTree]:
    from shardwright.campaign.overlays import cache_of
    from shardwright.connect.trees import ImageTree, InstalledTree, WheelTree
    from shardwright.connect.wheels import wheel_file

    return [
        *(WheelTree(wheel_file(wheel, cache_of(project.root))) for wheel in wheels),
        *(ImageTree(image) for image in images),
        *(InstalledTree(python) for python in pythons),
    ]


def _one_tree(project: Project, wheel: str | None, image: str | None, layout: str | None) -> SourceTree:
    given = [(wheel,), ()] if wheel else [(), (image,) if image else ()]
    trees = _trees(project, given[0], given[1], ())
    if trees:
        return trees[0]
    from shardwright.campaign.overlays import engine_tree

    return engine_tree(load(layout, ()).deployment)


_COLUMNS = ("patch", "edit", "engine", "verdict", "symbol", "reached", "message", "fix")


def _as_json(row: EditVerdict) -> dict[str, object]:
    reached = "unknown" if row.reached is None else row.reached
    values = asdict(row) | {"verdict": row.verdict.value, "reached": reached}
    return {column: values[column] for column in _COLUMNS}


def _show(rows: list[EditVerdict]) -> None:
    runs = {True: "runs", False: "not run", None: "-"}
    for engine in dict.fromkeys(row.engine for row in rows):
        click.echo(engine)
        for row in rows:
            if row.engine == engine:
                place = f"{row.patch}/{row.edit}" if row.edit else row.patch
                click.echo(f"  {row.verdict.value:<16} {runs[row.reached]:<8} {place}  {row.symbol}")
                if row.verdict.value != "OK":
                    click.echo(f"    {row.message}\n    fix: {row.fix}")


def _show_refreshed(found: list[Refreshed], left: list[str], as_json: bool) -> None:
    """Where each edit goes; `left` names the file to merge by hand, or is empty."""
    places = [
        {"module": row.edit.module, "symbol": row.edit.symbol, "find": row.edit.find} if row.edit else {}
        for row in found
    ]
    if as_json:
        rows = [
            {"edit": row.edit_id, "state": row.state, "file": row.relative, **place, "conflict": file}
            for row, place, file in zip(found, places, left, strict=True)
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    for row, place, file in zip(found, places, left, strict=True):
        click.echo(f"{row.state:<10} {row.edit_id or '(together)'}  {row.relative}")
        if row.state == "moved":
            click.echo(f"  {json.dumps(place)}")
        if file:
            click.echo(f"  merge by hand: {file}")
