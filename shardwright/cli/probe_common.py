"""What the probe verbs share: options, the file of trials, progress on stderr, and how a report is shown."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import click

from shardwright.cli.common import Target
from shardwright.probes.journal import Journal
from shardwright.probes.pool import Progress
from shardwright.probes.report import ProbeReport
from shardwright.probes.runs import open_run
from shardwright.probes.server import Server, identify
from shardwright.probes.wire import Endpoint

Command = TypeVar("Command", bound=Callable[..., Any])

COLOURS = {"PASS": "green", "FAIL": "red", "SKIP": "yellow", "INCONCLUSIVE": "yellow", "FAULT": "red"}

_SECRET_VARIABLES = ("VLLM_API_KEY", "HF_TOKEN")


def server_options(command: Command) -> Command:
    """Add how the server is reached, and `--json` (as `as_json`)."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's API key."),
        click.option("--base-url", metavar="URL", help="Ask this server instead of the layout's own."),
    ):
        command = option(command)
    return command


def mode_options(command: Command) -> Command:
    """Add `--quick` and `--full`, as `mode`: "quick", "full", or None where neither is given."""
    for option in (
        click.option("--full", "mode", flag_value="full", help="Everything; takes longest."),
        click.option("--quick", "mode", flag_value="quick", help="The shortest run that still says something."),
    ):
        command = option(command)
    return command


def output_option(command: Command) -> Command:
    """Add `--output FILE`."""
    return click.option(
        "--output", metavar="FILE", help="Keep the trials here; a run that was cut off is taken up again."
    )(command)


def concurrency_option(command: Command) -> Command:
    """Add `--concurrency N`, 1 by default."""
    return click.option(
        "--concurrency", type=click.IntRange(1, 256), default=1, show_default=True, help="Trials at a time."
    )(command)


def reach(target: Target) -> Server:
    """The server that a target names. Raises DeployError (exit 4) where nobody answers or the model is not served."""
    return identify(Endpoint(target.base_url, target.api_key), target.model)


def open_journal(target: Target, probe: str, plan_id: str, output: str | None, api_key_env: str | None) -> Journal:
    """The file of trials: `--output`, else one under runs/ that is taken up where it is unfinished."""
    named = (os.environ.get(name) for name in (*_SECRET_VARIABLES, *target.secrets, api_key_env or ""))
    secrets = [value for value in (target.api_key, *named) if value]
    if output is not None:
        return Journal(Path(output), secrets)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", target.layout_name).strip("-.")
    return open_run(target.project_root / "runs", f"{probe}-{name}", plan_id, secrets)


def show_start(server: Server, budget: str, journal: Journal) -> None:
    """Who is asked, what it costs, and where the trials go, on stderr."""
    version = f", version {server.version}" if server.version else ""
    click.echo(f"asking {server.model} at {server.endpoint.base_url}{version}", err=True)
    click.echo(budget, err=True)
    click.echo(f"trials in {journal.path}", err=True)


def show_report(report: ProbeReport, as_json: bool) -> None:
    """A report as JSON, or as its verdict with grounds and classes."""
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=1))
        return
    click.echo(f"{styled(report.verdict)}: {report.probe}, {report.failures} of {report.trials} trials failed")
    for reason in report.reasons:
        click.echo(f"  {reason}")
    if report.more_trials:
        click.echo(f"  {report.more_trials} more trials would decide")
    if report.classes:
        click.echo("  " + "  ".join(f"{name} {count}" for name, count in report.classes.items()))
    click.echo(f"  trials: {report.file}")


def styled(verdict: str) -> str:
    """A verdict in its colour."""
    return click.style(verdict, fg=COLOURS[verdict], bold=True)


class ProgressLine:
    """Progress on stderr: one line that is rewritten on a terminal, else a line at each tenth; failures at once.

    `word` names what is counted as a failure; records of the classes in `quiet` get no line of their own.
    """

    def __init__(self, word: str = "failed", quiet: Collection[str] = ("OK",)) -> None:
        self._word = word
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._tenth = -1

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def update(self, progress: Progress) -> None:
        last = progress.last
        if last is not None and last["class"] not in self._quiet:
            self._clear()
            prompt = f" ({last['prompt_id']})" if "prompt_id" in last else ""
            click.echo(f"trial {last['trial']}{prompt} {last['class']}: {last['detail']}", err=True)
        eta = "" if progress.eta_s is None else f", about {progress.eta_s:.0f} s left"
        line = f"{progress.done} of {progress.planned}, {progress.failures} {self._word}, {progress.errors} errors{eta}"
        tenth = 10 * progress.done // max(progress.planned, 1)
        if self._terminal:
            self._clear()
            click.echo(line, nl=False, err=True)
        elif tenth != self._tenth:
            click.echo(line, err=True)
        self._tenth = tenth

    def finish(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._terminal:
            click.echo("\r\033[K", nl=False, err=True)
