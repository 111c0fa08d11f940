"""Help: grouped by what a person does, one line per verb, and no more imported than printed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from shardwright.cli.main import COMMANDS, LazyGroup
from shardwright.cli.main import cli as group
from tests.unit.helpers import ROOT, Result, clean_environment

Cli = Callable[..., Result]

IMPORTED = """\
import contextlib, io, json, sys
from shardwright.cli.main import run
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""


def modules_after(*words: str) -> set[str]:
    """All modules that a fresh process has loaded after `deploy WORDS`."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *words],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    code, modules = json.loads(done.stdout)
    assert code == 0
    return set(modules)


def test_help_groups_the_verbs_by_what_a_person_does(cli: Cli):
    result = cli("--help")
    assert result.code == 0
    sections = [line for line in result.out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections == ["Options:", "Look:", "Check:", "Run:", "Probe:", "Evidence:"]


@pytest.mark.parametrize("verb", COMMANDS)
def test_no_verb_is_missing_from_the_help_or_described_otherwise(cli: Cli, verb: str):
    with click.Context(group) as ctx:
        command = group.get_command(ctx, verb)
    assert command is not None
    assert COMMANDS[verb][3] == command.get_short_help_str(limit=200)
    assert f"  {verb.ljust(max(map(len, COMMANDS)))}  {COMMANDS[verb][3]}" in cli("--help").out


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_has_help_of_its_own(cli: Cli, verb: str):
    result = cli(verb, "-h")
    assert (result.code, result.out.startswith(f"Usage: deploy {verb}")) == (0, True)


def test_the_group_lists_exactly_the_verbs():
    assert LazyGroup(name="g").list_commands(click.Context(group)) == list(COMMANDS)


def test_the_version_is_printed(cli: Cli):
    from shardwright import __version__

    assert cli("--version").out == f"deploy {__version__}\n"


def test_help_loads_no_yaml_and_no_room():
    modules = modules_after("--help")
    ours = {name for name in modules if name.startswith("shardwright.")}
    assert ours == {"shardwright.cli", "shardwright.cli.main", "shardwright.errors"}
    assert modules.isdisjoint({"yaml", "msgspec", "docker", "requests", "numpy", "scipy"})


HEAVY = {"docker", "requests", "numpy", "scipy", "subprocess", "asyncio", "importlib.metadata", "tempfile"}


@pytest.mark.parametrize("layout", ["glm53-tp4pp2", "tiny-cpu-pp2"])
def test_cmd_loads_nothing_that_only_other_verbs_need(layout: str):
    modules = modules_after("cmd", layout)
    assert modules & HEAVY == set()
    assert {name for name in modules if name.startswith(("shardwright.probes", "shardwright.runtime"))} == set()


@pytest.mark.parametrize("layout", ["glm53-tp4pp2", "tiny-cpu-pp2"])
def test_cmd_does_not_pay_for_dataclasses(layout: str):
    assert "dataclasses" not in modules_after("cmd", layout)
