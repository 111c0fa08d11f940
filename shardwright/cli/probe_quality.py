"""The verb `quality`."""

from __future__ import annotations

import click

from shardwright.cli.probe_common import (
    Asked,
    ProgressLine,
    mode_options,
    output_option,
    probe_command,
    show_report,
)
from shardwright.errors import ExitCode
from shardwright.probes.quality.plan import CATEGORIES, NEEDS, full, quick
from shardwright.probes.quality.run import PROBE, run_quality
from shardwright.probes.report import ProbeReport

_QUIET = ("PASS", "NOT_APPLICABLE")


@click.command()
@probe_command
@mode_options
@click.option("--engine-only", is_flag=True, help="Leave out what needs a capable model.")
@click.option("--skip", multiple=True, type=click.Choice(CATEGORIES), help="Leave out a category; may be repeated.")
@click.option("--require", multiple=True, type=click.Choice(NEEDS), help="Fail where the server has none of it.")
@click.option("--max-tokens", type=click.IntRange(min=64), default=1024, show_default=True, help="Longest answer.")
@output_option
def quality(
    asked: Asked,
    mode: str | None,
    engine_only: bool,
    skip: tuple[str, ...],
    require: tuple[str, ...],
    max_tokens: int,
) -> ExitCode:
    """Check answers that have one right form.

    Sampling fields, streams, logprobs, structured output, tool calls, the Responses interface, reasoning, copying of
    random ids alone and eight at a time, small facts. Quick (the default) asks each check once and for 80 ids; full
    asks for 320 ids and 20 tool calls. A check that the server cannot be asked is not applicable and never counts as
    passed. Exit 2 when a check fails, 3 when something stays open, 4 when nobody answers.
    """
    target = asked.target
    plan = (full if mode == "full" else quick)(
        engine_only=engine_only or bool(target.probes and target.probes.quality_engine_only),
        skip=skip,
        required=require,
        known=target.probes.quality_known if target.probes else (),
        max_tokens=max_tokens,
        deployment=target.digest,
    )
    with asked.trials(PROBE, plan, ProgressLine(quiet=_QUIET)) as (journal, on_progress):
        report = run_quality(asked.server, plan, journal, on_progress=on_progress)
    show_report(report, asked.as_json)
    if not asked.as_json:
        _show_echo(report)
    return report.exit_code


def _show_echo(report: ProbeReport) -> None:
    for name, count in report.numbers["echo"].items():
        if count["ids"]:
            click.echo(
                f"  {name}: {count['wrong']} of {count['ids']} ids wrong; with 95 % confidence the true rate is at "
                f"most {100 * count['upper_bound']:.3g} %"
            )
