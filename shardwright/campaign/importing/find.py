"""Which command of a shell text launches vLLM, and which of its words are the engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwright.campaign.importing.shell import Command, Script, UnclosedError, Word, read_script
from shardwright.errors import UsageError

TOOLS = ("docker", "podman")
_BEFORE = frozenset(("exec", "nohup", "sudo", "time", "setsid", "env", "command"))
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")


def script_of(text: str, values: Mapping[str, Word] | None = None) -> Script:
    """The commands of a text in which these variables are set already. UsageError where a quote is never closed."""
    try:
        return read_script(text, values)
    except UnclosedError as error:
        raise UsageError(str(error), fix="close it; the shell would wait for more") from None


def chosen_launch(script: Script, nth: int | None) -> tuple[Command, int]:
    """The launch of a script, the nth of several, and the word that it begins at. UsageError where it is not clear."""
    found = [(command, at) for command in script.commands if (at := launch_at(command)) is not None]
    if not found:
        raise UsageError(
            "no launch of vLLM is in this text",
            why="looked for: docker run, podman run, vllm serve, python -m vllm.entrypoints.openai.api_server",
            fix="give the script that holds it",
        )
    if nth is None and len(found) > 1:
        lines = ", ".join(str(command.line) for command, _ in found)
        raise UsageError(f"there are {len(found)} launches, on the lines {lines}", fix="say which: --nth 1")
    if nth is not None and nth > len(found):
        raise UsageError(f"--nth {nth}: there are only {len(found)} launches")
    return found[(nth or 1) - 1]


def launch_at(command: Command) -> int | None:
    """The word at which a launch begins; None where the command is none."""
    texts = [word.text for word in command.words]
    at, sets = 0, False
    while at < len(texts) and (texts[at] in _BEFORE or (sets and "=" in texts[at])):
        sets = sets or texts[at] == "env"
        at += 1
    rest = texts[at:]
    if rest and rest[0].rsplit("/", 1)[-1] in TOOLS and "run" in (*rest[1:2], *rest[2:3]):
        return at if rest[1] == "run" or rest[1:3] == ["container", "run"] else None
    return at if engine_words(command.words[at:]) is not None else None


def engine_words(words: Sequence[Word]) -> Sequence[Word] | None:
    """The words after `vllm serve`, or after a Python that runs the server; None where it is another command."""
    texts = [word.text for word in words]
    if texts[:1] and texts[0].rsplit("/", 1)[-1] == "vllm" and texts[1:2] == ["serve"]:
        return words[2:]
    if texts[:1] and texts[0].rsplit("/", 1)[-1].startswith("python") and "-m" in texts[:4]:
        at = texts.index("-m") + 1
        if at < len(texts) and texts[at] in _SERVERS:
            return words[at + 2 :] if texts[at + 1 : at + 2] == ["serve"] else words[at + 1 :]
    return None
