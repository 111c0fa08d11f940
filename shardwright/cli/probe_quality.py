"""The verb `quality`."""

from __future__ import annotations

import click

from shardwright.cli.common import layout_options, target_server
from shardwright.cli.probe_common import (
    ProgressLine,
    mode_options,
    open_journal,
    output_option,
    reach,
    server_options,
    show_report,
    show_start,
)
from shardwright.probes.quality.plan import CATEGORIES, NEEDS, full, quick
from shardwright.probes.quality.run import PROBE, run_quality
from shardwright.probes.report import ProbeReport

_QUIET = ("PASS", "NOT_APPLICABLE")


@click.command()
@layout_options
@server_options
@mode_options
@click.option("--engine-only", is_flag=True, help="Leave out what needs a capable model.")
@click.option("--skip", multiple=True, type=click.Choice(CATEGORIES), help="Leave out a category; may be repeated.")
@click.option("--require", multiple=True, type=click.Choice(NEEDS), help="Fail where the server has none of it.")
@click.option("--max-tokens", type=click.IntRange(min=64), default=1024, show_default=True, help="Longest answer.")
@output_option
@click.pass_context
def quality(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    as_json: bool,
    mode: str | None,
    engine_only: bool,
    skip: tuple[str, ...],
    require: tuple[str, ...],
    max_tokens: int,
    output: str | None,
) -> None:
    """Check answers that have one right form.

    Sampling fields, streams, logprobs, structured output, tool calls, the Responses interface, reasoning, copying of
    random ids alone and eight at a time, small facts. Quick (the default) asks each check once and for 80 ids; full
    asks for 320 ids and 20 tool calls. A check that the server cannot be asked is not applicable and never counts as
    passed. Exit 2 when a check fails, 3 when something stays open, 4 when nobody answers.
    """
    target = target_server(layout, sets, base_url, api_key_env)
    server = reach(target)
    plan = (full if mode == "full" else quick)(
        engine_only=engine_only or bool(target.probes and target.probes.quality_engine_only),
        skip=skip,
        required=require,
        max_tokens=max_tokens,
        deployment=target.digest,
    )
    with open_journal(target, PROBE, plan.id(server), output, api_key_env) as journal:
        show_start(server, plan.budget(), journal)
        with ProgressLine(quiet=_QUIET) as shown:
            report = run_quality(server, plan, journal, on_progress=shown.update)
    show_report(report, as_json)
    if not as_json:
        _show_echo(report)
    ctx.exit(report.exit_code)


def _show_echo(report: ProbeReport) -> None:
    for name, count in report.numbers["echo"].items():
        if count["ids"]:
            click.echo(
                f"  {name}: {count['wrong']} of {count['ids']} ids wrong; with 95 % confidence the true rate is at "
                f"most {100 * count['upper_bound']:.3g} %"
            )
