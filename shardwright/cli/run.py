"""Verbs about running engines: `start`, `wait`, `logs`, `stop`, `doctor`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from shardwright.campaign.engines import runtime_of
from shardwright.campaign.launch import newest_instance, started_record
from shardwright.campaign.records import StartRecord, read_record
from shardwright.cli.common import layout_options, load, read_log, show_findings
from shardwright.connect.project import Project, open_project
from shardwright.errors import ExitCode
from shardwright.layout.load import default_layout, find_layout, load_layout
from shardwright.runtime.base import Runtime


@click.command()
@layout_options
@click.pass_context
def start(ctx: click.Context, layout: str | None, sets: tuple[str, ...]) -> None:
    """Start the engine of a layout.

    Runs what `deploy cmd` prints, after the gates, and after proving that the overlays are the ones that were built.
    Returns at once; `deploy wait` follows.
    """
    from shardwright.campaign.launch import start as launch

    request = load(layout, sets, host=True)
    show_findings(request)
    if request.assessment.refused:
        ctx.exit(ExitCode.REFUSED)
    record = launch(request, os.environ)
    click.echo(f"started {record.instance}; next: deploy wait {record.layout}")


@click.command()
@click.argument("layout", required=False, metavar="[LAYOUT]")
@click.option("--timeout", "timeout_s", type=click.IntRange(min=1), help="Seconds; the layout's own by default.")
def wait(layout: str | None, timeout_s: int | None) -> None:
    """Wait until the engine answers, naming its phase.

    Ready means: /health is 200, /v1/models names the model, and one token was generated. Ends at once when the engine
    dies. Ctrl-C leaves the engine running.
    """
    from shardwright.runtime.wait import PhaseEvent, wait_ready

    project = open_project(os.environ)
    name, record, runtime = _started(project, layout)
    state = newest_instance(runtime, name)

    def show(event: PhaseEvent) -> None:
        still = "" if event.is_new else "still "
        click.echo(f"{event.elapsed_s:7.1f} s  {still}{event.phase}")

    ready = wait_ready(
        runtime,
        state.name,
        base_url=record.base_url,
        model=record.model,
        timeout_s=timeout_s or record.wait_timeout_s,
        on_event=show,
        api_key=os.environ.get("VLLM_API_KEY") if "VLLM_API_KEY" in record.secrets else None,
    )
    click.echo(f"ready after {ready.elapsed_s:.1f} s: {record.model} at {record.base_url}")


@click.command()
@click.argument("layout", required=False, metavar="[LAYOUT]")
@click.option("-f", "--follow", is_flag=True, help="Go on until the engine ends; Ctrl-C leaves it running.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last so many lines.")
def logs(layout: str | None, follow: bool, tail: int | None) -> None:
    """Print the engine's log."""
    project = open_project(os.environ)
    name, _, runtime = _started(project, layout)
    state = newest_instance(runtime, name)
    for line in runtime.logs(state.name, follow=follow, tail=tail):
        click.echo(line)


@click.command()
@click.argument("layout", required=False, metavar="[LAYOUT]")
@click.option("--timeout", "timeout_s", type=click.IntRange(min=0), help="Seconds before it is killed.")
def stop(layout: str | None, timeout_s: int | None) -> None:
    """Stop the engine of a layout.

    A stopped container is kept, with its log.
    """
    from shardwright.campaign.launch import ALIVE, stop_locked, writing

    project = open_project(os.environ)
    name, record, runtime = _started(project, layout)
    with writing(project.state_dir(), name, f"deploy stop {name}"):
        alive = [state for state in runtime.instances(name) if state.status in ALIVE]
        if not alive:
            click.echo(f"nothing of {name} runs")
        for state in alive:
            stop_locked(project, runtime, state, record, record.stop_timeout_s if timeout_s is None else timeout_s)
            click.echo(f"stopped {state.name}")


@click.command()
@click.argument("log", required=False, metavar="[LOG]")
@click.option("--layout", "layout", help="Read the log of this layout's engine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, log: str | None, layout: str | None, as_json: bool) -> None:
    """Explain why an engine died, from its log.

    LOG is a file, or - for standard input; without it the log of the layout's last engine. Exit 1 when a known cause
    of death was found, 0 when none was.
    """
    from shardwright.runtime.doctor import diagnose

    lines, exit_code = _log_lines(log, layout)
    found = diagnose(lines, exit_code)
    if as_json:
        rows = [{field: getattr(item, field) for field in item.__annotations__} for item in found]
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
    elif not found:
        click.echo("no known cause of death in this log")
    else:
        for item in found:
            click.echo(f"{item.kind} {item.id}: {item.cause}")
            click.echo(f"  line: {item.evidence_line}")
            click.echo(f"  fix: {item.fix}")
            if item.command:
                click.echo(f"  next: {item.command}")
    if any(item.kind == "cause" for item in found):
        ctx.exit(ExitCode.REFUSED)


def _log_lines(log: str | None, layout: str | None) -> tuple[list[str], int | None]:
    """The lines of a log, and the exit code of the engine that wrote it where that is known."""
    if log == "-":
        return sys.stdin.read().splitlines(), None
    if log is not None:
        return read_log(Path(log)), None
    name, _, runtime = _started(open_project(os.environ), layout)
    state = newest_instance(runtime, name)
    return list(runtime.logs(state.name)), None if state.status == "running" else state.exit_code


def layout_name(project: Project, layout: str | None) -> str:
    """The name that a layout file declares; a mistyped one is refused like everywhere else."""
    asked = default_layout(project, os.environ) if layout is None else layout
    if read_record(project.state_dir(), Path(asked).stem) is not None:
        return Path(asked).stem
    find_layout(asked, project)
    return load_layout(asked, project, {})[0].name


def _started(project: Project, layout: str | None) -> tuple[str, StartRecord, Runtime]:
    name = layout_name(project, layout)
    record = read_record(project.state_dir(), name)
    if record is None:
        deployment = load(layout, ()).deployment
        runtime = runtime_of(deployment.runtime, project.root)
        record = started_record(project.state_dir(), deployment, newest_instance(runtime, name))
    return name, record, runtime_of(record.runtime, project.root)
