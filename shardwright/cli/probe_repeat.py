"""The verb `repeat`."""

from __future__ import annotations

import click

from shardwright.cli.common import layout_options, target_server
from shardwright.cli.probe_common import (
    ProgressLine,
    concurrency_option,
    mode_options,
    open_journal,
    output_option,
    reach,
    server_options,
    show_report,
    show_start,
)
from shardwright.cli.probe_edges import known_edges, say_warning, topk_option
from shardwright.probes.repeat.run import full_plan, quick_plan, run_repeat


@click.command()
@layout_options
@server_options
@mode_options
@topk_option
@concurrency_option
@output_option
@click.pass_context
def repeat(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    as_json: bool,
    mode: str | None,
    index_topk: int | None,
    concurrency: int,
    output: str | None,
) -> None:
    """Ask the same again with other traffic between.

    A buffer that still holds the rows of an earlier request changes the answer; no reference run is needed to see it.
    Logprobs of prompt and answer are held against the server's own noise. Exit 2 when an answer depends on what was
    asked before it, 3 when answers are missing, 4 when nobody answers.
    """
    target = target_server(layout, sets, base_url, api_key_env)
    server = reach(target)
    make = full_plan if mode == "full" else quick_plan
    plan = make(known_edges(layout, sets, server, index_topk), deployment=target.digest)
    with open_journal(target, "repeat", plan.id(server), output, api_key_env) as journal:
        show_start(server, plan.budget(), journal)
        say_warning(plan.warning())
        with ProgressLine("changed", quiet=("SAME",)) as shown:
            report = run_repeat(server, plan, journal, concurrency=concurrency, on_progress=shown.update)
    show_report(report, as_json)
    ctx.exit(report.exit_code)
