"""The verb that makes a run readable: `report`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from shardwright.errors import DeployError, UsageError


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write here; default RUN.html beside it."
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a short table for an issue instead.")
def report(run: str, output: Path | None, open_it: bool, as_markdown: bool) -> None:
    """Make one page of a run or a comparison.

    RUN is a bundle's folder, or its name below runs/. The page needs no network. Every number on it is that of the
    bundle, which stays as it is; the page is written beside it. Exit 0 whatever the verdict.
    """
    from shardwright.campaign.report.markdown import markdown
    from shardwright.campaign.report.page import html_page
    from shardwright.campaign.report.stored import load_run
    from shardwright.connect.atomic import write_file
    from shardwright.probes.stored import NoPlanError

    if as_markdown and (open_it or output):
        raise UsageError("--markdown prints; --open and --output belong to the page", fix="leave one of them away")
    folder = _folder(run)
    try:
        stored = load_run(folder)
        text = markdown(stored) if as_markdown else html_page(stored)
    except (LookupError, TypeError, ValueError, AttributeError, NoPlanError) as error:
        raise DeployError(
            f"{folder} does not hold what a bundle holds: {type(error).__name__} {error}",
            why="a file of it was changed or damaged",
            fix=f"deploy evidence verify {folder}",
        ) from None
    if as_markdown:
        click.echo(text, nl=False)
        return
    target = output or folder.with_name(f"{folder.name}.html")
    if folder in target.resolve().parents:
        raise UsageError(f"{target} lies inside the bundle", why="evidence that changes afterwards proves nothing")
    write_file(target, text.encode("utf-8", "replace"))
    click.echo(str(target))
    if open_it:
        import webbrowser

        if not webbrowser.open(target.resolve().as_uri()):
            click.echo("no browser opens it", err=True)


def _folder(run: str) -> Path:
    from shardwright.connect.project import open_project

    below = open_project(os.environ).root / "runs" / run
    found = next((path for path in (Path(run), below) if path.is_dir()), None)
    if found is None:
        raise UsageError(f"there is no run {run!r}", fix="name a folder, or one below runs/: ls runs")
    return found.resolve()
