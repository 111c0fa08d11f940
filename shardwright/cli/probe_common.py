"""What the probe verbs share: the server they ask, the file of trials, progress on stderr, how a report is shown."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from shardwright.cli.common import Target, layout_options, target_server
from shardwright.errors import ExitCode
from shardwright.probes.journal import Journal
from shardwright.probes.pool import Progress
from shardwright.probes.report import ProbeReport
from shardwright.probes.runs import open_run
from shardwright.probes.server import Server, identify
from shardwright.probes.wire import Endpoint

Command = TypeVar("Command", bound=Callable[..., Any])

COLOURS = {"PASS": "green", "FAIL": "red", "SKIP": "yellow", "INCONCLUSIVE": "yellow", "FAULT": "red"}

_SECRET_VARIABLES = ("VLLM_API_KEY", "HF_TOKEN")


class Plan(Protocol):
    """What a probe will ask."""

    def id(self, server: Server, /) -> str:
        """Names the plan on this server: equal for runs whose trials may be counted together."""

    def budget(self) -> str:
        """Its cost in requests and tokens, as one line."""


@dataclass(frozen=True)
class Asked:
    """What every probe verb is told. `target` and `server` are found when they are first needed."""

    layout: str | None
    sets: tuple[str, ...]
    base_url: str | None
    api_key_env: str | None
    as_json: bool
    output: str | None = None

    @cached_property
    def target(self) -> Target:
        """The layout's server, or the one of `--base-url`."""
        return target_server(self.layout, self.sets, self.base_url, self.api_key_env)

    @cached_property
    def server(self) -> Server:
        """The target, once it answered. Raises DeployError (exit 4) where nobody does, or the model is not served."""
        return identify(Endpoint(self.target.base_url, self.target.api_key), self.target.model)

    @contextmanager
    def trials(
        self, probe: str, plan: Plan, progress: ProgressLine, warning: str | None = None
    ) -> Iterator[tuple[Journal, Callable[[Progress], None]]]:
        """The file of trials and what is to be called after each; says first who is asked and at which cost."""
        with self._journal(probe, plan.id(self.server)) as journal:
            version = f", version {self.server.version}" if self.server.version else ""
            click.echo(f"asking {self.server.model} at {self.server.endpoint.base_url}{version}", err=True)
            click.echo(plan.budget(), err=True)
            click.echo(f"trials in {journal.path}", err=True)
            if warning:
                click.echo(f"{click.style('warning', fg='yellow')}: {warning}", err=True)
            with progress:
                yield journal, progress.update

    def _journal(self, probe: str, plan_id: str) -> Journal:
        """`--output`, else a file under runs/ that is taken up where it is unfinished."""
        named = (os.environ.get(name) for name in (*_SECRET_VARIABLES, *self.target.secrets, self.api_key_env or ""))
        secrets = [value for value in (self.target.api_key, *named) if value]
        if self.output is not None:
            return Journal(Path(self.output), secrets)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.target.layout_name).strip("-.")
        return open_run(self.target.project_root / "runs", f"{probe}-{name}", plan_id, secrets)


def probe_command(ask: Callable[..., ExitCode]) -> Callable[..., None]:
    """The verb of `ask(asked, **own_options)`: adds LAYOUT and the server's options, exits with what `ask` returns."""

    def command(
        layout: str | None,
        sets: tuple[str, ...],
        base_url: str | None,
        api_key_env: str | None,
        as_json: bool,
        output: str | None = None,
        **own_options: Any,
    ) -> None:
        asked = Asked(layout, sets, base_url, api_key_env, as_json, output)
        click.get_current_context().exit(ask(asked, **own_options))

    return layout_options(server_options(update_wrapper(command, ask)))


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


def show_report(report: ProbeReport, as_json: bool) -> None:
    """A report as JSON, or as its verdict with grounds and classes."""
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=1))
        return
    show_head(report, f"{report.probe}, {report.failures} of {report.trials} trials failed")
    if report.classes:
        click.echo("  " + "  ".join(f"{name} {count}" for name, count in report.classes.items()))
    click.echo(f"  trials: {report.file}")


def show_head(report: ProbeReport, count: str) -> None:
    """Verdict and count, with the upper bound of the rate where there is one; the grounds; what would decide."""
    bound = report.numbers.get("upper_bound")
    sure = f"; with 95 % confidence the true rate is at most {100 * bound:.3g} %" if report.trials and bound else ""
    click.echo(f"{styled(report.verdict)}: {count}{sure}")
    for reason in report.reasons:
        click.echo(f"  {reason}")
    if report.more_trials:
        click.echo(f"  {report.more_trials} more trials would decide")


def styled(verdict: str) -> str:
    """A verdict in its colour."""
    return click.style(verdict, fg=COLOURS.get(verdict), bold=True)


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
