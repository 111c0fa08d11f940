"""The verb `repeat`."""

from __future__ import annotations

import click

from shardwright.cli.probe_common import (
    Asked,
    ProgressLine,
    concurrency_option,
    mode_options,
    output_option,
    probe_command,
    show_report,
)
from shardwright.cli.probe_edges import known_edges, topk_option
from shardwright.errors import ExitCode
from shardwright.probes.repeat.run import full_plan, quick_plan, run_repeat


@click.command()
@probe_command
@mode_options
@topk_option
@concurrency_option
@output_option
def repeat(asked: Asked, mode: str | None, index_topk: int | None, concurrency: int) -> ExitCode:
    """Ask the same again with other traffic between.

    A buffer that still holds the rows of an earlier request changes the answer; no reference run is needed to see it.
    Logprobs of prompt and answer are held against the server's own noise. Exit 2 when an answer depends on what was
    asked before it, 3 when answers are missing, 4 when nobody answers.
    """
    make = full_plan if mode == "full" else quick_plan
    plan = make(known_edges(asked, index_topk), deployment=asked.target.digest)
    progress = ProgressLine("changed", quiet=("SAME",))
    with asked.trials("repeat", plan, progress, plan.warning()) as (journal, on_progress):
        report = run_repeat(asked.server, plan, journal, concurrency=concurrency, on_progress=on_progress)
    show_report(report, asked.as_json)
    return report.exit_code
