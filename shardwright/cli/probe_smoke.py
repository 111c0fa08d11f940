"""The verb `smoke`."""

from __future__ import annotations

import json

import click

from shardwright.cli.probe_common import COLOURS, Asked, probe_command, styled
from shardwright.errors import ExitCode
from shardwright.probes.smoke.run import Check, SmokeResult, run_smoke
from shardwright.probes.wire import Endpoint


@click.command()
@probe_command
def smoke(asked: Asked) -> ExitCode:
    """Ask the running server a few certain things.

    Health, version, model name, a greedy completion twice, chat, streaming equal to non-streaming, usage, broken
    characters and finish reason. Exit 2 when a check fails, 4 when nobody answers; a skipped check is not a pass.
    """
    endpoint = Endpoint(asked.target.base_url, asked.target.api_key)
    result = run_smoke(endpoint, asked.target.model, None if asked.as_json else _show_check)
    if asked.as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    else:
        _show_smoke(result)
    return result.exit_code


def _show_check(check: Check) -> None:
    status = click.style(f"{check.status:4}", fg=COLOURS[check.status])
    click.echo(f"{status}  {check.id:24}  {check.elapsed_s * 1000:6.0f} ms  {check.detail}")


def _show_smoke(result: SmokeResult) -> None:
    parts = [f"{result.count('PASS')} passed", f"{result.count('FAIL')} failed", f"{result.count('SKIP')} skipped"]
    click.echo(f"{styled(result.verdict)}: {', '.join(parts)} at {result.base_url}")
