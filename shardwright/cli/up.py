"""Verbs that bring a deployment up, accept it, and return from it: `up`, `verify`, `rollback`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwright.cli.common import layout_options, load, show_findings, target_server
from shardwright.cli.probe_common import server_options, styled
from shardwright.errors import DeployError, UsageError

if TYPE_CHECKING:
    from shardwright.campaign.request import Request
    from shardwright.runtime.wait import PhaseEvent

message_option = click.option(
    "--message", "-m", default="", help="What this is for; others who want the deployment meanwhile are shown it."
)


@click.command()
@layout_options
@click.option("--replace", is_flag=True, help="Stop another deployment of the layout that runs; it is kept.")
@click.option("--auto-rollback", is_flag=True, help="Return to the accepted deployment before it when this one fails.")
@click.option("--verify", "mode", type=click.Choice(["quick", "default", "full"]), default="quick", show_default=True)
@message_option
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@click.pass_context
def up(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    replace: bool,
    auto_rollback: bool,
    mode: Any,
    message: str,
    as_json: bool,
) -> None:
    """Start a layout and accept it.

    Check, build, start, wait, prove, verify. Ends at the first refusal and says what to do; the evidence is in runs/. A
    run that was cut off is taken up by the same command. Exit 0 accepted, 1 refused or not started, 2 a probe failed,
    3 inconclusive, 4 the harness failed.
    """
    from shardwright.campaign.up import UpOptions
    from shardwright.campaign.up import up as bring_up

    request = load(layout, sets, host=True)
    show_findings(request, infos=False)
    options = UpOptions(mode=mode, replace=replace, auto_rollback=auto_rollback, message=message)
    outcome = bring_up(request, os.environ, options, say=say, on_phase=show_phase)
    if as_json:
        row = {
            "verdict": outcome.verdict,
            "reasons": outcome.reasons,
            "instance": outcome.instance,
            "run": str(outcome.run),
            "rolled_back_to": outcome.rolled_back_to,
        }
        click.echo(json.dumps(row, indent=1))
    else:
        click.echo(f"{styled(outcome.verdict)}: {outcome.instance}")
        for reason in outcome.reasons:
            click.echo(f"  {reason}")
        click.echo(f"  evidence: {outcome.run}")
        if outcome.rolled_back_to:
            click.echo(f"  back on {outcome.rolled_back_to}")
        elif outcome.verdict == "FAIL":
            click.echo(f"  next: deploy rollback {request.deployment.name}, or deploy stop {request.deployment.name}")
    ctx.exit(outcome.exit_code)


@click.command()
@layout_options
@server_options
@click.option("--full", "mode", flag_value="full", help="Ask everything, long answers and long prompts too.")
@click.option("--quick", "mode", flag_value="quick", help="Ask what decides most in a few minutes.")
@click.option("--control", type=click.Path(path_type=Path), metavar="RUN", help="Compare with this run of another arm.")
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Take up, or keep, the evidence here.")
@click.option("--ablate", metavar="PATCH", help="Ask with this patch and again without it: is it load-bearing?")
@click.option("--yes", is_flag=True, help="With --ablate: do not ask before the engine is stopped.")
@click.pass_context
def verify(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    as_json: bool,
    mode: Any,
    control: Path | None,
    output: Path | None,
    ablate: str | None,
    yes: bool,
) -> None:
    """Ask a running server everything that decides, cheapest first.

    One verdict per probe: PASS, FAIL, INCONCLUSIVE, FAULT; what was not asked is no pass. Exit 0 all passed, 2 a probe
    failed, 3 inconclusive, 4 the harness failed. With --ablate the engine is started without the patch, asked the same
    and started with it again: exit 0 load-bearing, 2 not, 3 undecided.
    """
    if ablate is not None:
        ctx.exit(_ablate(layout, sets, ablate, mode or "default", yes, as_json))
    from shardwright.campaign.acceptance import accept

    target = target_server(layout, sets, base_url, api_key_env)
    request = load(layout, sets) if target.probes is not None else None
    verified, folder = accept(
        target.project_root,
        target.layout_name,
        target.base_url,
        target.model,
        target.api_key,
        request,
        mode or "default",
        control=control,
        output=output,
        say=say,
    )
    if as_json:
        row = {
            "verdict": verified.verdict,
            "reasons": verified.reasons,
            "probes": {report["probe"]: report["verdict"] for report in verified.reports},
            "reports": verified.reports,
            "run": str(folder),
        }
        click.echo(json.dumps(row, indent=1))
    else:
        click.echo(styled(verified.verdict))
        for reason in verified.reasons:
            click.echo(f"  {reason}")
        click.echo(f"  evidence: {folder}")
    ctx.exit(verified.exit_code)


def _ablate(layout: str | None, sets: tuple[str, ...], patch: str, mode: Any, yes: bool, as_json: bool) -> int:
    from shardwright.campaign.ablate import EXIT_CODES, without_patch
    from shardwright.campaign.ablate import ablate as ask_both

    request = load(layout, sets, host=True)
    bare = load(layout, without_patch(sets, request, patch), host=True)
    if not yes:
        _confirm_stop(request, f"to ask without {patch}")
    found = ask_both(request, bare, os.environ, mode, say=say, on_phase=show_phase)
    runs = [str(run) for run in (found.with_run, found.without_run) if run]
    if as_json:
        row = {"patch": patch, "bearing": found.bearing, "reason": found.reason, "runs": runs}
        click.echo(json.dumps(row, indent=1))
    else:
        click.echo(f"{patch}: {found.bearing}\n  {found.reason}")
        for run in runs:
            click.echo(f"  evidence: {run}")
    return EXIT_CODES[found.bearing]


@click.command()
@layout_options
@click.option("--yes", is_flag=True, help="Do not ask before the engine is stopped.")
@message_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def boots(
    ctx: click.Context, layout: str | None, sets: tuple[str, ...], yes: bool, message: str, as_json: bool
) -> None:
    """Ask the same prompts on two boots of one deployment.

    Stops the engine and starts it again. Weights that nobody loaded answer differently on each boot, though each boot
    agrees with itself. Exit 0 the same, 2 different, 3 undecided.
    """
    from shardwright.campaign.boots import run_boots

    request = load(layout, sets, host=True)
    if not yes:
        _confirm_stop(request, "and start it again")
    report, folder = run_boots(request, os.environ, message=message, say=say, on_phase=show_phase)
    if as_json:
        click.echo(json.dumps(report.to_json() | {"run": str(folder)}, indent=1))
    else:
        click.echo(styled(report.verdict))
        for reason in report.reasons:
            click.echo(f"  {reason}")
        click.echo(f"  evidence: {folder}")
    ctx.exit(report.exit_code)


@click.command()
@click.argument("layout", required=False, metavar="[LAYOUT]")
@message_option
def rollback(layout: str | None, message: str) -> None:
    """Return to the accepted deployment before this one.

    Stops what runs and starts the kept instance again, exactly as it was accepted; its files are checked first.
    """
    from shardwright.campaign.rollback import rollback as go_back
    from shardwright.cli.run import layout_name
    from shardwright.connect.project import open_project

    project = open_project(os.environ)
    name = layout_name(project, layout)
    record = go_back(project, name, os.environ, message=message, say=say, on_phase=show_phase)
    click.echo(f"back on {record.instance}; next: deploy smoke {name}")


def _confirm_stop(request: Request, rest: str) -> None:
    """Ask before the engine of this request is stopped; where it does not run there is nothing to ask."""
    from shardwright.campaign.engines import runtime_of
    from shardwright.campaign.launch import ALIVE

    name = request.deployment.instance_name
    if runtime_of(request.deployment.runtime, request.project.root).state(name).status in ALIVE:
        confirm(f"stop {name} {rest}?")


def confirm(question: str) -> None:
    """Ask before an engine is stopped. UsageError without a terminal, DeployError (exit 1) when the answer is no."""
    if not sys.stdin.isatty():
        raise UsageError(f"nobody is there to answer: {question}", fix="add --yes to do it without asking")
    if not click.confirm(question, err=True):
        raise DeployError("nothing was stopped", fix="add --yes to do it without asking")


def say(line: str) -> None:
    """One line of progress, on stderr."""
    click.echo(line, err=True)


def show_phase(event: PhaseEvent) -> None:
    """One phase of a start, on stderr."""
    click.echo(f"{event.elapsed_s:7.1f} s  {'' if event.is_new else 'still '}{event.phase}", err=True)
