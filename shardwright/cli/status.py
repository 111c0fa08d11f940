"""The verb `status`."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import click

from shardwright.cli.run import layout_name
from shardwright.connect.project import open_project

if TYPE_CHECKING:
    from shardwright.campaign.watch import EngineStatus


@click.command()
@click.argument("layout", required=False, metavar="[LAYOUT]")
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=0.5),
    is_flag=False,
    flag_value=2.0,
    metavar="[SECONDS]",
    help="Look again and again, every two seconds if nothing else is said.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line each time.")
def status(layout: str | None, every_s: float | None, as_json: bool) -> None:
    """Show what runs, in which state.

    Phase, uptime, requests, KV use, acceptance and preemptions as the server says them, GPU memory, and whether it
    still is what the layout says. Without LAYOUT: everything that was started from this project.
    """
    from shardwright.campaign.watch import look

    project = open_project(os.environ)
    if layout is not None:
        layout = layout_name(project, layout)
    while True:
        rows = look(project, layout, os.environ)
        if as_json:
            data = [row.as_data() for row in rows]
            click.echo(json.dumps(data, indent=None if every_s else 1))
        else:
            if every_s:
                click.clear()
            _show(rows, layout)
        if not every_s:
            return
        time.sleep(every_s)


def _show(rows: list[EngineStatus], layout: str | None) -> None:
    if not rows:
        click.echo(f"nothing of {layout} was started here" if layout else "nothing was started from this project")
    for row in rows:
        uptime = f"up {row.uptime_s} s" if row.uptime_s is not None else f"exit code {row.exit_code}"
        phase = f"  {row.phase}" if row.phase else ""
        click.echo(f"{row.instance}  {row.status}{phase}  {uptime}  {row.base_url or ''}".rstrip())
        if row.answers is not None:
            click.echo(f"  {_served(row)}")
        if row.drift is not None:
            named = f": {', '.join(row.drifted)}; deploy drift {row.layout}" if row.drifted else ""
            click.echo(f"  drift: {row.drift}{named}")
        if row.overlay is not None:
            click.echo(f"  overlay: {row.overlay}")
        if row.gpu_memory_gib:
            cards = "  ".join(f"{used:.1f}/{total:.1f}" for used, total in row.gpu_memory_gib)
            click.echo(f"  GPU memory, GiB: {cards}")


def _served(row: EngineStatus) -> str:
    if row.answers == "no":
        return "does not answer"
    if row.answers == "unhealthy":
        return "answers, but not healthy"
    if row.answers == "no metrics":
        return "answers, without metrics"
    parts: list[tuple[str, Any]] = [
        ("running", row.running),
        ("waiting", row.waiting),
        ("KV use", None if row.kv_usage is None else f"{100 * row.kv_usage:.1f} %"),
        ("acceptance length", None if row.acceptance_length is None else f"{row.acceptance_length:.2f}"),
        ("preemptions", row.preemptions),
    ]
    return "  ".join(f"{name} {value}" for name, value in parts if value is not None)
