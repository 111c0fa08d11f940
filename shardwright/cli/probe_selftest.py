"""Verbs about the probes themselves: `probe selftest`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shardwright.probes.selftest.run import Cell


@click.group()
def probe() -> None:
    """Test the probes themselves."""


@probe.command()
@click.option("--probe", "probes", multiple=True, metavar="NAME", help="Only this probe; may be repeated.")
@click.option("--fault", "faults", multiple=True, metavar="ID", help="Only this fault, or `healthy`; may be repeated.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each cell.")
@click.option("--list", "listed", is_flag=True, help="Print the table of faults and expected outcomes; run nothing.")
@click.option("--client-overhead", is_flag=True, help="Measure instead whether this machine's client keeps up.")
@click.option("--streams", type=click.IntRange(1, 1024), default=128, show_default=True, help="For --client-overhead.")
@click.option("--period-ms", type=click.FloatRange(0.5, 1000), default=10.0, show_default=True, help="The same.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def selftest(
    ctx: click.Context,
    probes: tuple[str, ...],
    faults: tuple[str, ...],
    seeds: int,
    listed: bool,
    client_overhead: bool,
    streams: int,
    period_ms: float,
    as_json: bool,
) -> None:
    """Run every probe against a bundled server that is healthy, then has one known fault after another.

    A probe must pass on the healthy server and say the right thing on each of its faults. Needs no GPU and no engine.
    Exit 0 where every probe is right, 2 where one is not; with --client-overhead 3 where the client is the limit.
    """
    if client_overhead:
        ctx.exit(_client_overhead(streams, period_ms / 1000, as_json))
    from shardwright.probes.selftest.run import matrix, planned_cells, run_selftest

    cells = planned_cells(probes, faults)
    if listed:
        click.echo(matrix())
        return
    click.echo(f"{len(cells)} cells, {seeds} runs of each, on servers of this machine", err=True)
    result = run_selftest(cells, seeds, None if as_json else _show_cell)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    else:
        right = sum(cell.right for cell in result.cells)
        verdict = click.style(result.verdict, fg="green" if result.verdict == "PASS" else "red", bold=True)
        click.echo(f"{verdict}: {right} of {len(result.cells)} cells as expected")
    ctx.exit(result.exit_code)


def _show_cell(cell: Cell) -> None:
    status = click.style("right" if cell.right else "WRONG", fg="green" if cell.right else "red")
    last = cell.observed[-1] if cell.right else cell.observed[cell.wrong_seeds[0] - 1]
    seen = f" {' '.join(last.seen)}" if last.seen else ""
    click.echo(f"{status}  {cell.probe:8}  {cell.mode:20}  {last.verdict}{seen}")
    if not cell.right:
        click.echo(f"       expected {cell.expected}; not so with seeds {', '.join(map(str, cell.wrong_seeds))}")
        for reason in last.reasons[:3]:
            click.echo(f"       {reason}")


def _client_overhead(streams: int, period_s: float, as_json: bool) -> int:
    from dataclasses import asdict

    from shardwright.errors import ExitCode
    from shardwright.probes.self_check import LARGEST_ERROR, check_client

    check = check_client(streams, period_s)
    verdict = "CLIENT-LIMITED" if check.limited else "PASS"
    if as_json:
        click.echo(json.dumps({"verdict": verdict, **asdict(check)}, indent=1))
    else:
        click.echo(
            f"{verdict}: {streams} streams, an event each {1000 * period_s:g} ms; median gap error "
            f"{100 * check.median_gap_error:.2g} % (at most {100 * LARGEST_ERROR:g} %), 95th percentile "
            f"{100 * check.p95_gap_error:.2g} %, mean of the worst stream {100 * check.worst_mean_error:.2g} %"
        )
    return ExitCode.INCONCLUSIVE if check.limited else ExitCode.OK
