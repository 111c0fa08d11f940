"""The verb that compares what runs with what would be started: `drift`."""

from __future__ import annotations

import json

import click
from msgspec.structs import asdict

from shardwright.cli.common import layout_options, load
from shardwright.errors import ExitCode


@click.command()
@layout_options
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
@click.pass_context
def drift(ctx: click.Context, layout: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Compare the running engine with what would be started.

    Command line, variables by digest, image, mounts and the files that the engine sees in them, container options and
    the overlay's lock. Exit 0 without a difference, 2 with one, 1 when nothing of the layout runs. Overrides count, as
    they do for `deploy start`.
    """
    from shardwright.campaign.drift import find_drift

    found = find_drift(load(layout, sets))
    if as_json:
        rows = [asdict(difference) for difference in found.differences]
        verdict = "drift" if rows else "none"
        content = {"layout": found.layout, "instance": found.instance, "verdict": verdict, "differences": rows}
        click.echo(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        for difference in found.differences:
            click.echo(f"DRIFT {difference.path}: running {difference.running}, would be {difference.wanted}")
            for name, text in (("why", difference.why), ("fix", difference.fix)):
                if text:
                    click.echo(f"  {name}: {text}")
        count = len(found.differences)
        summary = f"{count} difference{'s' if count > 1 else ''}" if count else "no drift"
        click.echo(f"{found.instance}: {summary}")
    if found.differences:
        ctx.exit(ExitCode.DRIFT)
