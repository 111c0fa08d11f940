"""A command line as text that can be pasted into a POSIX shell."""

from __future__ import annotations

from shlex import quote

from shardwright.render.command import RenderedCommand


def shell_lines(command: RenderedCommand) -> str:
    """One flag with its values per line, joined by backslashes; every token quoted where the shell needs it."""
    lines: list[str] = []
    if command.env:
        lines.append("env")
    for part in command.parts:
        lines += _flag_lines(part.tokens) if part.kind == "command" else [_quoted(part.tokens)]
    return " \\\n  ".join(lines)


def _flag_lines(tokens: tuple[str, ...]) -> list[str]:
    lines: list[list[str]] = [[]]
    for token in tokens:
        if token.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(token)
    return [_quoted(tuple(line)) for line in lines if line]


def _quoted(tokens: tuple[str, ...]) -> str:
    return " ".join(quote(token) for token in tokens)
