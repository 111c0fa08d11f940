"""Verbs that ask a running server: `smoke`, `degen`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from shardwright.cli.common import Target, layout_options, target_server
from shardwright.errors import UsageError
from shardwright.probes.degen import run_degen
from shardwright.probes.degen_plan import TEMPERATURE, TOP_P, DegenPlan, DegenResult, Progress
from shardwright.probes.journal import Journal
from shardwright.probes.prompts import ROTATION, own_prompts
from shardwright.probes.runs import open_run
from shardwright.probes.server import Server, identify
from shardwright.probes.smoke import Check, SmokeResult, run_smoke
from shardwright.probes.wire import Endpoint

Command = TypeVar("Command", bound=Callable[..., Any])

_TRIALS_VARIABLE = "AGENT_PROBE_TRIALS"
_DEFAULT_TRIALS = 40
_DEFAULT_MAX_TOKENS = 1500
_SECRET_VARIABLES = ("VLLM_API_KEY", "HF_TOKEN")
_COLOURS = {"PASS": "green", "FAIL": "red", "SKIP": "yellow", "INCONCLUSIVE": "yellow", "FAULT": "red"}
_EXAMPLES_SHOWN = 3


def server_options(command: Command) -> Command:
    """Add how the server is reached, and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's API key."),
        click.option("--base-url", metavar="URL", help="Ask this server instead of the layout's own."),
    ):
        command = option(command)
    return command


@click.command()
@layout_options
@server_options
@click.pass_context
def smoke(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    as_json: bool,
) -> None:
    """Ask the running server a few certain things.

    Health, version, model name, a greedy completion twice, chat, streaming equal to non-streaming, usage, broken
    characters and finish reason. Exit 2 when a check fails, 4 when nobody answers; a skipped check is not a pass.
    """
    target = target_server(layout, sets, base_url, api_key_env)
    endpoint = Endpoint(target.base_url, target.api_key)
    result = run_smoke(endpoint, target.model, None if as_json else _show_check)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    else:
        _show_smoke(result)
    ctx.exit(result.exit_code)


@click.command()
@layout_options
@server_options
@click.option(
    "--trials", type=click.IntRange(min=1), help=f"Number of trials; else {_TRIALS_VARIABLE} or the layout's."
)
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Ask this instead; may be repeated.")
@click.option("--api", type=click.Choice(["chat", "completions"]), help="Which interface to ask.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Where an answer counts as endless.")
@click.option("--concurrency", type=click.IntRange(1, 256), default=1, show_default=True, help="Trials at a time.")
@click.option("--output", metavar="FILE", help="Keep the trials here; a run that was cut off is taken up again.")
@click.pass_context
def degen(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    as_json: bool,
    trials: int | None,
    prompts: tuple[str, ...],
    api: str | None,
    max_tokens: int | None,
    concurrency: int,
    output: str | None,
) -> None:
    """Count looping answers over many trials.

    Short questions at temperature 0.8 and top_p 0.9, each with its own fixed seed; an answer that loops is ended at
    once. The count comes with its one-sided 95 % upper bound. Exit 2 on any degenerate trial, 0 on none, 3 when some
    trials got no answer, 4 when none did. Trials go to runs/ as JSON lines.
    """
    target = target_server(layout, sets, base_url, api_key_env)
    server = identify(Endpoint(target.base_url, target.api_key), target.model)
    plan = _plan(target, trials, prompts, api, max_tokens)
    with _journal(target, output, plan.id(server), api_key_env) as journal:
        _show_plan(server, plan, journal)
        shown = _ProgressLine()
        try:
            result = run_degen(server, plan, journal, concurrency=concurrency, on_progress=shown.update)
        finally:
            shown.finish()
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    else:
        _show_degen(result)
    ctx.exit(result.exit_code)


def _plan(
    target: Target, trials: int | None, prompts: tuple[str, ...], api: str | None, max_tokens: int | None
) -> DegenPlan:
    """The command line first, then the layout (which already counts the environment in), then the defaults."""
    settings = target.probes
    own = prompts or (settings.degen_prompts if settings else ())
    return DegenPlan(
        prompts=own_prompts(own) if own else ROTATION,
        trials=trials or (settings.degen_trials if settings else _trials_from(os.environ)),
        api="completions" if (api or (settings.degen_api if settings else "")) == "completions" else "chat",
        max_tokens=max_tokens or (settings.degen_max_tokens if settings else _DEFAULT_MAX_TOKENS),
        deployment=target.digest,
    )


def _trials_from(environment: Mapping[str, str]) -> int:
    text = environment.get(_TRIALS_VARIABLE, "")
    if not text:
        return _DEFAULT_TRIALS
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise UsageError(f"{_TRIALS_VARIABLE}={text!r} is no number of trials", fix=f"unset {_TRIALS_VARIABLE}")
    click.echo(f"override {_TRIALS_VARIABLE}={text}", err=True)
    return int(text)


def _journal(target: Target, output: str | None, plan_id: str, api_key_env: str | None) -> Journal:
    from pathlib import Path

    named = (os.environ.get(name) for name in (*_SECRET_VARIABLES, *target.secrets, api_key_env or ""))
    secrets = [value for value in (target.api_key, *named) if value]
    if output is not None:
        return Journal(Path(output), secrets)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", target.layout_name).strip("-.")
    return open_run(target.project_root / "runs", f"degen-{name}", plan_id, secrets)


def _show_check(check: Check) -> None:
    status = click.style(f"{check.status:4}", fg=_COLOURS[check.status])
    click.echo(f"{status}  {check.id:24}  {check.elapsed_s * 1000:6.0f} ms  {check.detail}")


def _show_smoke(result: SmokeResult) -> None:
    parts = [f"{result.count('PASS')} passed", f"{result.count('FAIL')} failed", f"{result.count('SKIP')} skipped"]
    click.echo(f"{_styled(result.verdict)}: {', '.join(parts)} at {result.base_url}")


def _show_plan(server: Server, plan: DegenPlan, journal: Journal) -> None:
    version = f", version {server.version}" if server.version else ""
    click.echo(f"asking {server.model} at {server.endpoint.base_url}{version}", err=True)
    click.echo(
        f"{plan.trials} trials, {len(plan.prompts)} prompts in turn by {plan.api}, temperature {TEMPERATURE}, "
        f"top_p {TOP_P}, at most {plan.max_tokens} tokens each",
        err=True,
    )
    click.echo(f"trials in {journal.path}", err=True)


def _show_degen(result: DegenResult) -> None:
    bound = f"{100 * result.upper_bound:.3g} %"
    click.echo(
        f"{_styled(result.verdict)}: {result.failures} of {result.trials} trials degenerate; "
        f"with 95 % confidence the true rate is at most {bound}"
    )
    if result.taken_up:
        click.echo(f"  {result.taken_up} of these trials were on file already")
    if result.trials < result.planned:
        click.echo(f"  {result.planned - result.trials} of {result.planned} trials have no answer: {result.last_error}")
    click.echo("  " + "  ".join(f"{name} {count}" for name, count in result.classes.items()))
    for name, (failures, trials) in result.per_prompt.items():
        click.echo(f"  {name}: {failures} of {trials}")
    for example in result.examples[:_EXAMPLES_SHOWN]:
        click.echo(f"  trial {example['trial']} {example['class']}: {example['detail']}")
        click.echo(f"    … {(example['reasoning'] + example['text'])[-100:]!r}")
    click.echo(f"  trials: {result.file}")


class _ProgressLine:
    """Progress on stderr: one line that is rewritten on a terminal, else a line at each tenth; failures at once."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._tenth = -1

    def update(self, progress: Progress) -> None:
        last = progress.last
        if last is not None and last["class"] != "OK":
            self._clear()
            click.echo(f"trial {last['trial']} ({last['prompt_id']}) {last['class']}: {last['detail']}", err=True)
        eta = "" if progress.eta_s is None else f", about {progress.eta_s:.0f} s left"
        line = f"{progress.done} of {progress.planned}, {progress.failures} degenerate, {progress.errors} errors{eta}"
        tenth = 10 * progress.done // progress.planned
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


def _styled(verdict: str) -> str:
    return click.style(verdict, fg=_COLOURS[verdict], bold=True)
