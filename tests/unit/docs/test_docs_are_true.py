"""The examples and tables of the docs are run against the code, so that neither can go stale alone."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

from shardwright.cli.main import COMMANDS, cli, run
from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import load_yaml
from shardwright.layout.overrides import ENV_RULES
from shardwright.layout.schema import decode_layout

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
_COMMAND = re.compile(r"deploy ((?:[a-z]+ ?)+)([^`\n|;)#\"]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_LAYOUT = re.compile(r"```yaml layout\n(.*?)```", re.DOTALL)


def console_examples() -> list[Any]:
    """Every `$ …` line of a console block that is followed by its exit status, as `? N`."""
    found = []
    for page in PAGES:
        for block in _CONSOLE.findall(page.read_text()):
            lines = block.splitlines()
            for line, following in pairwise(lines):
                if line.startswith("$ ") and following.startswith("? "):
                    found.append(pytest.param(line[2:], int(following[2:]), id=f"{page.name}: {line[2:]}"))
    return found


@pytest.mark.parametrize(("line", "status"), console_examples())
def test_a_documented_command_exits_as_documented(
    line: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    assert words[0] == "deploy"
    monkeypatch.chdir(ROOT)
    assert run(words[1:]) == status, capsys.readouterr().err


def test_the_documented_layout_shows_every_key_of_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = _LAYOUT.findall((ROOT / "docs" / "layouts.md").read_text())
    asked: set[tuple[str, ...]] = set()
    peek = Section._peek

    def recording(self: Section, key: str) -> Any:
        asked.add((*self.path, key))
        return peek(self, key)

    monkeypatch.setattr(Section, "_peek", recording)
    document = load_yaml(text, "docs/layouts.md")
    decode_layout(document, "docs/layouts.md")
    missing = {".".join(path) for path in asked if path not in document.marks}
    assert not missing


def test_every_environment_override_is_documented() -> None:
    page = (ROOT / "docs" / "layouts.md").read_text()
    names = [rule.variable for rule in ENV_RULES] + ["PORT", "ALLOW_UNVERIFIED_PP", "DEPLOY_LAYOUT", "DEPLOY_PROJECT"]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_benchmark_tables_say_what_the_records_say() -> None:
    check = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    assert subprocess.run(check).returncode == 0, "run: python benchmarks/tables.py"


def test_every_gate_is_documented() -> None:
    page = (ROOT / "docs" / "gates.md").read_text()
    source = "".join(file.read_text() for file in (ROOT / "shardwright" / "gates").glob("*.py"))
    gates = set(re.findall(r'GATE = "([a-z-]+)"', source)) | set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
    gates |= {"pp-mtp", "pp-ngram"}
    assert gates, "no gate found: the pattern is stale"
    assert [gate for gate in sorted(gates) if f"`{gate}`" not in page] == []


def test_every_command_is_named_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"deploy {name}" not in readme] == []


def unknown_options(text: str) -> list[str]:
    """The options of every `deploy VERB …` in a text that the verb does not have."""
    found = []
    for words, rest in _COMMAND.findall(text):
        command: click.Command = cli
        options: set[str] = {"--help"}
        for word in words.split():
            inner = command.get_command(click.Context(cli), word) if isinstance(command, click.Group) else None
            if inner is None:
                break
            command = inner
        own = list(command.commands.values()) if isinstance(command, click.Group) else []
        for each in (command, *own):
            options |= {option for parameter in each.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if command is not cli:
            found += [f"{words}{option}" for option in _OPTION.findall(rest) if option not in options]
    return found


SOURCES = [
    file
    for folder in ("shardwright", "configs", "patches")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".yaml")
]


def test_no_page_and_no_message_names_an_option_that_its_verb_does_not_have() -> None:
    texts = {file: file.read_text() for file in (*PAGES, *SOURCES)}
    assert {str(file): found for file, text in texts.items() if (found := unknown_options(text))} == {}
    assert unknown_options("fix: `deploy patch check x --wheel 0.30.0 --wheels`") == ["patch check x --wheels"]


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in readme] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_of_the_docs_is_dead(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
