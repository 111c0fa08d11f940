"""The verb `degen`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from shardwright.campaign.request import prepare
from shardwright.cli.common import Target
from shardwright.cli.probe_common import (
    Asked,
    ProgressLine,
    concurrency_option,
    mode_options,
    output_option,
    probe_command,
    show_head,
)
from shardwright.errors import ExitCode, UsageError
from shardwright.probes.client import Api
from shardwright.probes.degen.control import control_file, keep_control, server_fingerprint
from shardwright.probes.degen.plan import BOUNDED_MAX_TOKENS, DegenPlan, full_plan
from shardwright.probes.degen.prompts import ROTATION, own_prompts
from shardwright.probes.degen.report import PROBE, failing_trials
from shardwright.probes.degen.run import run_degen
from shardwright.probes.journal import Journal, Record
from shardwright.probes.pool import finished_trials
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import Server, identify
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint

_TRIALS_VARIABLE = "AGENT_PROBE_TRIALS"
_DEFAULT_TRIALS = 40
_QUICK_TRIALS = 20
_FULL_TRIALS = 200
_EXAMPLES_SHOWN = 3


@click.command()
@probe_command
@mode_options
@click.option(
    "--trials", type=click.IntRange(min=1), help=f"Number of trials; else {_TRIALS_VARIABLE} or the layout's."
)
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Ask this instead; may be repeated.")
@click.option("--api", type=click.Choice(["chat", "completions"]), help="Which interface to ask.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Where an answer counts as endless.")
@click.option(
    "--control",
    metavar="LAYOUT|FILE|URL",
    help="Trials of a control: a layout's kept ones, a file, or a server to ask.",
)
@concurrency_option
@output_option
def degen(
    asked: Asked,
    mode: str | None,
    trials: int | None,
    prompts: tuple[str, ...],
    api: str | None,
    max_tokens: int | None,
    control: str | None,
    concurrency: int,
) -> ExitCode:
    """Count looping answers over many trials.

    Short questions at temperature 0.8 and top_p 0.9, each with its own fixed seed; an answer that loops is ended at
    once. The count comes with its one-sided 95 % upper bound. Exit 2 on any degenerate trial, 0 on none, 3 when some
    trials got no answer, 4 when none did. Trials go to runs/ as JSON lines.

    --quick asks 20. --full asks 200, then 40 transcripts with tool results and 40 long texts, a fifth alone and the
    rest 8 at a time; it fails at the fourth degenerate trial, and 1 to 3 exit 3.
    """
    server, target = asked.server, asked.target
    plan = _plan(server, target, trials, prompts, api, max_tokens, mode)
    arm = () if control is None else _control(control, target, plan, concurrency)
    with asked.trials(PROBE, plan, ProgressLine("degenerate")) as (journal, on_progress):
        on_file = len(finished_trials(journal.records, plan.id(server)))
        report = run_degen(server, plan, journal, concurrency=concurrency, control=arm, on_progress=on_progress)
        examples = failing_trials(journal.records, report.plan)
        if target.digest:
            keep_control(target.project_root / "runs", plan, target.digest, journal.records)
    if asked.as_json:
        click.echo(json.dumps(report.to_json(), indent=1))
    else:
        _show_degen(report, on_file, examples)
    return report.exit_code


def _plan(
    server: Server,
    target: Target,
    trials: int | None,
    prompts: tuple[str, ...],
    api: str | None,
    max_tokens: int | None,
    mode: str | None,
) -> DegenPlan:
    settings = target.probes
    texts = prompts or (settings.degen_prompts if settings else ())
    chosen: Api = "completions" if (api or (settings.degen_api if settings else "")) == "completions" else "chat"
    default = {"quick": _QUICK_TRIALS, "full": _FULL_TRIALS}.get(mode or "")
    plan = DegenPlan(
        prompts=own_prompts(texts) if texts else ROTATION,
        trials=trials or default or (settings.degen_trials if settings else _trials_from(os.environ)),
        api=chosen,
        max_tokens=max_tokens or (settings.degen_max_tokens if settings else BOUNDED_MAX_TOKENS),
        deployment=target.digest,
    )
    return full_plan(plan, server.capabilities.max_model_len) if mode == "full" else plan


def _control(control: str, target: Target, plan: DegenPlan, concurrency: int) -> list[Record]:
    """The records of a control: kept ones, a file of trials, or a server that is asked once for each of its boots."""
    if "://" not in control:
        return read_records(_kept(control, target, plan) if not Path(control).is_file() else Path(control))
    server = identify(Endpoint(control, target.api_key), target.model)
    plan = replace(plan, deployment="")
    file = control_file(target.project_root / "runs", plan, server_fingerprint(server))
    with Journal(file, [value for value in (target.api_key,) if value]) as journal:
        click.echo(f"control: {server.model} at {server.endpoint.base_url}, trials in {file}", err=True)
        with ProgressLine("degenerate") as shown:
            run_degen(server, replace(plan, rule="any"), journal, concurrency=concurrency, on_progress=shown.update)
        return list(journal.records)


def _kept(layout: str, target: Target, plan: DegenPlan) -> Path:
    """The trials that the last `deploy degen LAYOUT` left of exactly the deployment that the layout is now."""
    digest = prepare(layout, os.environ).deployment.digest
    file = control_file(target.project_root / "runs", plan, [digest])
    if not file.is_file():
        raise UsageError(
            f"no trials of {layout} are kept that could be the control",
            why="a control is asked once, with the same prompts and sampler, while it runs",
            fix=f"start {layout} and run deploy degen {layout}; or give --control FILE or URL",
        )
    click.echo(f"control: {layout}, trials in {file}", err=True)
    return file


def _trials_from(environment: Mapping[str, str]) -> int:
    text = environment.get(_TRIALS_VARIABLE, "")
    if not text:
        return _DEFAULT_TRIALS
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise UsageError(f"{_TRIALS_VARIABLE}={text!r} is no number of trials", fix=f"unset {_TRIALS_VARIABLE}")
    click.echo(f"override {_TRIALS_VARIABLE}={text}", err=True)
    return int(text)


def _show_degen(report: ProbeReport, on_file: int, examples: list[Record]) -> None:
    numbers = report.numbers
    show_head(report, f"{report.failures} of {report.trials} trials degenerate")
    if on_file:
        click.echo(f"  {on_file} of these trials were on file already")
    control = numbers["control"]
    if control:
        click.echo(
            f"  control: {control['failures']} of {control['trials']}; so many more failures come by luck with p = "
            f"{control['p_value']:.2e} (Fisher, one-sided)"
        )
    click.echo("  " + "  ".join(f"{name} {count}" for name, count in report.classes.items()))
    for name, row in numbers["per_prompt"].items():
        click.echo(f"  {name}: {row['failures']} of {row['trials']}")
    for example in examples[:_EXAMPLES_SHOWN]:
        click.echo(f"  trial {example['trial']} {example['class']}: {example['detail']}")
        click.echo(f"    … {(example['reasoning'] + example['text'])[-100:]!r}")
    click.echo(f"  trials: {report.file}")
