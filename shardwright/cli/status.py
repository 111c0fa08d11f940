"""The verb `status`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from shardwright.cli.run import layout_name
from shardwright.connect.project import open_project

if TYPE_CHECKING:
    from shardwright.campaign.watch import EngineStatus

_ANSWERS = {
    "no": "does not answer",
    "unhealthy": "answers, but not healthy",
    "no metrics": "answers, without metrics",
}


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

    Phase, uptime, requests, KV use, acceptance and preemptions as the server says them, memory of its GPUs, and whether
    it still is what the layout says. Without LAYOUT: everything that was started from this project.
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
        elif every_s:
            _redraw([f"deploy status, {time.strftime('%H:%M:%S')}, every {every_s:g} s; Ctrl-C ends", ""], rows, layout)
        else:
            click.echo("\n".join(_lines(rows, layout)))
        if not every_s:
            return
        time.sleep(every_s)


def _redraw(head: list[str], rows: list[EngineStatus], layout: str | None) -> None:
    """Over what stood there, in one piece: a screen that is cleared first flickers."""
    lines = [*head, *_lines(rows, layout)]
    if sys.stdout.isatty():
        click.echo("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J", nl=False)
    else:
        click.echo("\n".join([*lines, ""]))


def _lines(rows: list[EngineStatus], layout: str | None) -> Iterator[str]:
    if not rows:
        yield f"nothing of {layout} was started here" if layout else "nothing was started from this project"
    for place, row in enumerate(rows):
        if place:
            yield ""
        state = [row.status, row.phase, _uptime(row.uptime_s) if row.uptime_s is not None else _end(row)]
        told = ", ".join(part for part in state if part)
        yield f"{click.style(row.instance, bold=True)}  {click.style(told, fg=_colour(row))}"
        for name, told in _told(row):
            yield f"  {name:<9} {told}"


def _told(row: EngineStatus) -> Iterator[tuple[str, str]]:
    if row.base_url and row.answers is not None:
        yield "server", f"{row.base_url}  {row.model or ''}".rstrip()
    if row.restart_count:
        yield "restarts", str(row.restart_count)
    if row.answers in _ANSWERS:
        yield "answer", _ANSWERS[row.answers]
    if row.running is not None:
        waiting = "" if row.waiting is None else f", {row.waiting} waiting"
        yield "requests", f"{row.running} running{waiting}"
    if row.kv_usage is not None:
        preempted = "" if row.preemptions is None else f", {row.preemptions} preemptions"
        yield "KV cache", f"{100 * row.kv_usage:.1f} % used{preempted}"
    if row.acceptance_length is not None:
        yield "drafts", f"acceptance length {row.acceptance_length:.2f}"
    for place, card in enumerate(row.cards):
        whose = "" if row.cards_named else " (all of this host)"
        yield f"GPU {card.number}", f"{card.used_gib:.1f} of {card.total_gib:.1f} GiB{whose if not place else ''}"
    if row.drift is not None:
        yield "drift", row.drift + (f": {', '.join(row.drifted)}; deploy drift {row.layout}" if row.drifted else "")
    if row.overlay is not None:
        yield "overlay", row.overlay


def _colour(row: EngineStatus) -> str:
    if row.status in ("dead", "restarting") or row.exit_code or row.answers == "unhealthy":
        return "red"
    return "green" if row.answers in ("yes", "no metrics") else "yellow"


def _end(row: EngineStatus) -> str:
    return "" if row.exit_code is None else f"exit code {row.exit_code}"


def _uptime(seconds: int) -> str:
    """As up 47 s, up 12 min 5 s, up 3 h 10 min, up 2 d 4 h."""
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"up {seconds // size} {unit} {seconds % size // smaller} {name}"
    return f"up {seconds} s"
