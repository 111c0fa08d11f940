"""The verb `import`: a launch as shell text, read into a layout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from shardwright.connect.project import open_project
from shardwright.errors import UsageError
from shardwright.gates.finding import Finding


@click.command("import")
@click.argument("script", metavar="FILE|-")
@click.option("--name", help="Name of the layout; else that of the container or of the image.")
@click.option("--vllm", "version", metavar="VERSION", help="The vLLM in the image; else the image's tag says it.")
@click.option("--nth", type=click.IntRange(min=1), help="Which of several launches, from 1.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def import_(script: str, name: str | None, version: str | None, nth: int | None, as_json: bool) -> None:
    """Read a launch from a shell text into a layout.

    The launch is a `docker run` or a `vllm serve`. Prints the layout: `deploy import run.sh > mine.yaml`, then
    `deploy check mine.yaml`. Nothing of the text is run; variables that it sets itself are filled in. What no layout
    can say, flags that a lost backslash cuts off, and secrets in plain text are told on stderr.
    """
    from shardwright.campaign.importing.launch import read_launch
    from shardwright.campaign.importing.layout_text import check_layout, layout_text
    from shardwright.cli.common import show_finding
    from shardwright.facts.engine_tables import all_tables

    text = _text(script)
    tables = all_tables(open_project(os.environ))
    aliases = {alias: flag.name for table in tables for flag in table.flags for alias in flag.aliases}
    launch = read_launch(text, aliases, name=name, version=version, nth=nth)
    shown = layout_text(launch.layout, "standard input" if script == "-" else Path(script).name)
    check_layout(shown)
    findings = [
        Finding("import", "warn", remark.message, remark.why, remark.fix, f"line {remark.line}" if remark.line else "")
        for remark in launch.remarks
    ]
    if as_json:
        rows = [{key: getattr(one, key) for key in one.__struct_fields__} for one in findings]
        click.echo(json.dumps({"layout": shown, "findings": rows}, indent=1, ensure_ascii=False))
        return
    for finding in findings:
        show_finding(finding)
    click.echo(shown, nl=False)


def _text(script: str) -> str:
    try:
        data = sys.stdin.buffer.read() if script == "-" else Path(script).read_bytes()
    except OSError as error:
        raise UsageError(f"{script} cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{script} is not UTF-8 text", fix="give the shell script itself") from None
