"""The `vtp` verbs: plan, sidecar, qualify odd tensor parallelism."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwright.cli.common import Target, layout_options, load, target_server
from shardwright.connect.project import open_project
from shardwright.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from shardwright.probes.wire import Endpoint


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
    from shardwright.campaign.vtp.report import plan_json, plan_lines
    from shardwright.campaign.vtp.target import find_target, plan_for

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
@click.option("--check", "check_only", is_flag=True, help="Check this sidecar, or the layout's; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def sidecar(ctx: click.Context, target: str, tp: int | None, out: str | None, check_only: bool, as_json: bool) -> None:
    """Write, or check, the folder that the engine is given as its model.

    It holds a config.json with padded sizes and links to the checkpoint, a few kilobytes; target and MTP draft both
    read it. A sidecar is refused where the checkpoint has moved, the TP is another, or vocab_size was padded.
    """
    from msgspec.structs import asdict

    from shardwright.campaign.vtp.sidecar import check_sidecar, write_sidecar
    from shardwright.campaign.vtp.target import find_sidecar, find_target, plan_for

    project = open_project(os.environ)
    if check_only:
        if out is not None:
            raise UsageError("--check and --out exclude each other")
        made, problems = check_sidecar(*find_sidecar(target, tp, project, os.environ))
    else:
        if out is None:
            raise UsageError("--out DIR is missing", fix="name the folder that the engine will be given as its model")
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


_COLOURS = {"green": "green", "red": "red", "open": "", "stale": "yellow"}


@vtp.command()
@layout_options
@click.option("--base-url", metavar="URL", help="Ask this server instead of the layout's own.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's API key.")
@click.option("--python", help="Interpreter with the engine, for the checks that need no server.")
@click.option("--record", type=click.Path(dir_okay=False), help="Record the running server's greedy answers.")
@click.option("--against", type=click.Path(dir_okay=False), help="Compare the running server with this recording.")
@click.option("--rung", type=click.Choice(["parity", "graph-replay", "mtp", "speed"]), help="Try this rung.")
@click.option("--tolerance", type=float, default=0.25, show_default=True, help="Largest logprob difference.")
@click.option("--json", "as_json", is_flag=True, help="Print the ladder as JSON.")
@click.pass_context
def qualify(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    python: str | None,
    record: str | None,
    against: str | None,
    rung: str | None,
    tolerance: float,
    as_json: bool,
) -> None:
    """Climb the ladder of proof; show what each claim stands on.

    Without --rung it tries what needs no server. Parity is one command on each side: --record FILE on a TP that
    divides, then --rung parity --against FILE on the odd one. A rung is refused while one below it is open. Exit 0
    when all are green, 2 when one failed, 3 while some are open.
    """
    from shardwright.campaign.vtp import qualify as climbing

    if record is not None and (rung or against):
        raise UsageError("--record excludes --rung and --against", fix="record first, then try the rung")
    if against is not None and rung not in ("parity", "mtp"):
        raise UsageError("--against FILE is read by --rung parity and --rung mtp only", fix="name the rung")

    def connect() -> tuple[Endpoint, str]:
        return _server(target_server(layout, sets, base_url, api_key_env))

    request = load(layout, sets)
    if record is not None:
        made = climbing.save_recording(request.deployment, *connect(), Path(record))
        click.echo(f"{record}: {len(made.answers)} greedy answers of {made.layout} at TP={made.tp}")
        return
    climb = climbing.open_climb(request)
    if rung is None:
        climbing.climb_unattended(climb, python, lambda name: click.echo(f"trying {name}", err=True))
    else:
        _try(climbing, climb, rung, against, tolerance, connect)
    standings = climb.standings()
    if as_json:
        rows = [
            {
                "rung": row.rung.name,
                "claim": row.rung.claim,
                "state": row.state,
                "where": row.where,
                "detail": row.detail,
            }
            for row in standings
        ]
        click.echo(json.dumps({"layout": climb.deployment.name, "tp": climb.plan.tp, "rungs": rows}, indent=1))
    else:
        for row in standings:
            state = click.style(f"{row.state:<6}", fg=_COLOURS[row.state] or None)
            click.echo(f"{state} {row.rung.name:<18} {row.rung.claim}")
            if row.where or row.detail:
                click.echo(f"{'':<25} {row.where}: {row.detail}")
        if step := climbing.next_step(climb, standings):
            click.echo(f"next: {step}")
    if any(row.state == "red" for row in standings):
        ctx.exit(ExitCode.DRIFT)
    if not climbing.complete(standings):
        ctx.exit(ExitCode.INCONCLUSIVE)


def _try(climbing: Any, climb: Any, rung: str, against: str | None, tolerance: float, connect: Any) -> None:
    if rung in ("parity", "mtp") and against is None:
        raise UsageError(f"--rung {rung} needs --against FILE", fix="record one first: --record FILE")
    if rung == "parity":
        climbing.try_parity(climb, connect, Path(str(against)), tolerance)
    elif rung == "graph-replay":
        climbing.try_replay(climb, connect)
    elif rung == "mtp":
        climbing.try_mtp(climb, connect, Path(str(against)))
    else:
        climbing.try_speed(climb, connect)


def _server(target: Target) -> tuple[Endpoint, str]:
    from shardwright.probes.server import identify
    from shardwright.probes.wire import Endpoint

    endpoint = Endpoint(target.base_url, target.api_key)
    return endpoint, identify(endpoint, target.model).model
