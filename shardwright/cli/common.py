"""What several verbs share: the LAYOUT argument, `--set`, and how notes and findings are shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Struct

from shardwright.campaign.request import Request, prepare
from shardwright.connect.project import open_project
from shardwright.errors import UsageError
from shardwright.gates.finding import Finding
from shardwright.layout.schema import ProbeSettings
from shardwright.resolve.resolve import rule_warnings

Command = TypeVar("Command", bound=Callable[..., Any])

_LABELS = {
    "reject": ("REFUSED", "red"),
    "warn": ("WARNING", "yellow"),
    "unknown": ("UNKNOWN", "cyan"),
    "info": ("note", ""),
}


class Target(Struct, frozen=True):
    """The server that a probe asks; `model` is None where the server is to name it.

    `secrets` names variables whose values no record may hold.
    """

    base_url: str
    model: str | None
    api_key: str | None
    layout_name: str
    digest: str
    project_root: Path
    probes: ProbeSettings | None
    secrets: tuple[str, ...]


def layout_options(command: Command) -> Command:
    """Add the optional LAYOUT argument and `--set KEY=VALUE`."""
    command = click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override one layout key, e.g. parallel.tensor=8."
    )(command)
    return click.argument("layout", required=False, metavar="[LAYOUT]")(command)


def facts_option(command: Command) -> Command:
    """Add `--facts FILE`."""
    return click.option(
        "--facts",
        "facts_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Facts of the machine it will run on, in place of this one's.",
    )(command)


def load(layout: str | None, sets: tuple[str, ...], *, host: bool = False, facts_file: Path | None = None) -> Request:
    """Prepare a request and echo every override that acted, on stderr."""
    request = prepare(layout, os.environ, sets, host=host, facts_file=facts_file)
    for override in request.overrides:
        click.echo(f"override {override}", err=True)
    return request


def show_findings(request: Request, *, infos: bool = True) -> None:
    """Rule warnings and findings, on stderr."""
    for note in rule_warnings(request.deployment):
        click.echo(f"{_label('warn')} rule {note.rule}: {note.message}", err=True)
    for finding in request.assessment.findings:
        if infos or finding.verdict != "info":
            show_finding(finding)


def show_finding(finding: Finding, *, err: bool = True) -> None:
    click.echo(f"{_label(finding.verdict)} {finding.gate}: {finding.message}", err=err)
    for name, text in (("why", finding.why), ("fix", finding.fix), ("evidence", finding.evidence)):
        if text:
            click.echo(f"  {name}: {text}", err=err)


def _label(verdict: str) -> str:
    word, colour = _LABELS[verdict]
    return click.style(word, fg=colour or None, bold=bool(colour))


def target_server(layout: str | None, sets: tuple[str, ...], base_url: str | None, api_key_env: str | None) -> Target:
    """Where to send probes: the layout's server on this host, or `--base-url` of any other.

    What was started last counts, also where `start` had overrides. With both LAYOUT and `--base-url`, the layout gives
    prompts and model name. The API key is read from the environment by name; by default from VLLM_API_KEY where the
    layout lists it.
    """
    url = None if base_url is None else _address(base_url)
    key = _api_key(api_key_env) if api_key_env else None
    if url is not None and layout is None:
        return Target(url, None, key, "remote", "", open_project(os.environ).root, None, ())
    from shardwright.campaign.records import read_record

    request = load(layout, sets)
    deployment = request.deployment
    record = read_record(request.project.state_dir(), deployment.name) if url is None else None
    if key is None and "VLLM_API_KEY" in deployment.secrets:
        key = os.environ.get("VLLM_API_KEY")
    return Target(
        url or (record.base_url if record else deployment.base_url),
        record.model if record else deployment.served_model_name,
        key,
        deployment.name,
        record.digest if record else deployment.digest,
        request.project.root,
        deployment.probes,
        deployment.secrets,
    )


def read_log(file: Path) -> list[str]:
    """The lines of a log; bytes that are no text are replaced. Raises UsageError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"the log {file} cannot be read: {error.strerror}") from None


def _address(base_url: str) -> str:
    scheme, _, rest = base_url.partition("://")
    host = rest.rstrip("/").removesuffix("/v1")
    if scheme not in ("http", "https") or not host:
        raise UsageError(f"--base-url {base_url!r} is not an http address", fix="write http://HOST:PORT")
    return f"{scheme}://{host}"


def _api_key(name: str) -> str:
    key = os.environ.get(name)
    if not key:
        raise UsageError(f"the environment has no {name}", fix=f"export {name}=... and run again")
    return key
