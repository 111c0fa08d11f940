"""The verb `speed`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shardwright.cli.probe_common import (
    Asked,
    ProgressLine,
    mode_options,
    output_option,
    probe_command,
    show_report,
    styled,
)
from shardwright.errors import ExitCode, UsageError
from shardwright.probes.client import Api
from shardwright.probes.journal import Journal
from shardwright.probes.report import ProbeReport
from shardwright.probes.speed.compare import MetricVerdict, compare_speed, rows_of
from shardwright.probes.speed.engines import ENGINES, run_engine
from shardwright.probes.speed.plan import default, full, quick
from shardwright.probes.speed.report import PROBE
from shardwright.probes.speed.run import run_speed
from shardwright.probes.speed.table import markdown
from shardwright.probes.stored import read_records

_PLANS = {"quick": quick, "full": full, None: default}


@click.command()
@probe_command
@mode_options
@click.option("--engine", "engines", multiple=True, type=click.Choice(ENGINES), help="Run this tool too; repeatable.")
@click.option("--tokenizer", metavar="PATH", help="For --engine: the tokenizer, where the server's path is not here.")
@click.option("--against", metavar="FILE", help="Compare with the trials of a control arm.")
@output_option
def speed(
    asked: Asked,
    mode: str | None,
    engines: tuple[str, ...],
    tokenizer: str | None,
    against: str | None,
) -> ExitCode:
    """Measure step time, acceptance, tok/s, TTFT and prefill.

    Three texts of controlled content, one stream and up to 16, warmed up, with the server's counters read around each
    round. Quick takes one and four streams; full adds rounds, an ordinary sampler and prefill to 128k. Exit 2 when
    drafts are noise or --against finds a loss, 3 when a number proves nothing, 4 when others used the server.
    """
    control = rows_of(read_records(Path(against))) if against else None
    if control is not None and not control:
        raise UsageError(f"{against} holds no rounds of deploy speed")
    api: Api = "chat" if asked.server.capabilities.chat else "completions"
    plan = _PLANS[mode](api=api, deployment=asked.target.digest)
    others: list[dict[str, Any]] = []
    with asked.trials(PROBE, plan, ProgressLine(word="not usable")) as (journal, on_progress):
        report = run_speed(asked.server, plan, journal, on_progress=on_progress)
    for engine in engines:
        click.echo(f"running {engine}", err=True)
        others += run_engine(engine, asked.server, plan, _raw_folder(journal), tokenizer)
    verdicts = compare_speed(control, report.numbers["rows"]) if control else []
    if asked.as_json:
        content = report.to_json() | {"tools": others, "against": [asdict(verdict) for verdict in verdicts]}
        click.echo(json.dumps(content, indent=1))
    else:
        _show(report, others, verdicts)
    return _exit_code(report, verdicts)


def _raw_folder(journal: Journal) -> Path:
    """Beside the trials, so that the raw results of other tools travel with them."""
    return journal.path.with_suffix(".tools")


def _show(report: ProbeReport, others: Sequence[Mapping[str, Any]], verdicts: Sequence[MetricVerdict]) -> None:
    click.echo(markdown([*report.numbers["rows"], *others]))
    click.echo()
    show_report(report, as_json=False)
    for verdict in verdicts:
        told = "" if verdict.role == "gate" else " (told only)"
        click.echo(f"{styled(verdict.verdict)}{told} {verdict.metric}: {verdict.reason}")


def _exit_code(report: ProbeReport, verdicts: Sequence[MetricVerdict]) -> ExitCode:
    """The report's own, else what the comparison says."""
    if report.verdict != "PASS":
        return report.exit_code
    seen = {verdict.verdict for verdict in verdicts if verdict.role == "gate"}
    if "FAIL" in seen:
        return ExitCode.DRIFT
    return ExitCode.INCONCLUSIVE if "INCONCLUSIVE" in seen else ExitCode.OK
