"""The verbs `parity record` and `parity compare`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from shardwright.cli.probe_common import Asked, ProgressLine, mode_options, probe_command, show_report
from shardwright.cli.probe_edges import known_edges, topk_option
from shardwright.errors import ExitCode
from shardwright.probes.parity.plan import full_plan, quick_plan
from shardwright.probes.parity.report import compare as compare_records
from shardwright.probes.parity.run import run_parity
from shardwright.probes.stored import read_records


@click.group()
def parity() -> None:
    """Compare two deployments token by token.

    Record each one, then compare the files: `deploy parity record A-LAYOUT --output a.jsonl`, the same for B, and
    `deploy parity compare a.jsonl b.jsonl`.
    """


@parity.command()
@probe_command
@mode_options
@topk_option
@click.option("--output", required=True, metavar="FILE", help="The recording; one that was cut off is taken up again.")
def record(asked: Asked, mode: str | None, index_topk: int | None) -> ExitCode:
    """Record what the model thinks of every token of fixed prompts, and how it goes on.

    Each prompt is asked one at a time and eight at a time; the difference is the server's own noise. Exit 2 when a
    logprob is no number, 3 when scores are missing, 4 when nobody answers.
    """
    make = full_plan if mode == "full" else quick_plan
    plan = make(known_edges(asked, index_topk), deployment=asked.target.digest)
    with asked.trials("parity", plan, ProgressLine("broken"), plan.warning()) as (journal, on_progress):
        report = run_parity(asked.server, plan, journal, on_progress=on_progress)
    show_report(report, asked.as_json)
    return report.exit_code


@parity.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--noise", type=click.Path(path_type=Path), metavar="A2", help="A second recording of A, after a restart."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def compare(ctx: click.Context, a: Path, b: Path, noise: Path | None, as_json: bool) -> None:
    """Is B the same model as A, up to A's own noise.

    Exit 2 when it is not, 3 when the recordings do not say, 64 when they were made of different prompts, models or
    modes.
    """
    report = compare_records(read_records(a), read_records(b), read_records(noise) if noise is not None else None)
    show_report(replace(report, file=f"{a} {b}"), as_json)
    ctx.exit(report.exit_code)
