"""A next command that a message names is one that there is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

from shardwright.cli.main import COMMANDS

ROOMS = Path(__file__).resolve().parents[3] / "shardwright"
_COMMAND = re.compile(r"\bdeploy ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")


def fixes_in(source: str) -> Iterator[str]:
    """The words of everything that is given, or set aside, as a fix."""
    for node in ast.walk(ast.parse(source)):
        given = node.value if isinstance(node, ast.keyword) and node.arg == "fix" else None
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "fix" for one in node.targets):
            given = node.value
        for part in ast.walk(given) if given else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def unknown_commands(text: str) -> list[str]:
    unknown = []
    for found in _COMMAND.finditer(text):
        verb, word = found.groups()
        command = None
        if verb in COMMANDS:
            _, module, name, _ = COMMANDS[verb]
            command = getattr(import_module(f"shardwright.cli.{module}"), name)
        missing = isinstance(command, click.Group) and word is not None and word not in command.commands
        if command is None or missing:
            unknown.append(found[0])
    return unknown


def test_every_command_that_a_fix_names_exists() -> None:
    wrong = {
        f"{file.relative_to(ROOMS)}: {command}"
        for file in ROOMS.rglob("*.py")
        for text in fixes_in(file.read_text(encoding="utf-8"))
        for command in unknown_commands(text)
    }
    assert wrong == set()


def test_a_command_that_is_not_there_is_noticed() -> None:
    source = 'raise DeployError("x", fix=f"deploy probe needle {name}, or deploy check {name}")\nfix = "deploy strat"'
    assert [command for text in fixes_in(source) for command in unknown_commands(text)] == [
        "deploy strat",
        "deploy probe needle",
    ]
