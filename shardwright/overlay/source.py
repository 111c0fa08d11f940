"""Python source seen as lines with named symbols: the ground on which anchors are looked up."""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

Span = tuple[int, int]
"""Half-open range of line indices, counted from 0."""

FOOTER_NAME = "__overlay__"

_BLOCKS = ("body", "orelse", "finalbody")


@dataclass(frozen=True)
class Symbol:
    """One definition. `span` covers decorators and body; `body_indent` is None for a one-line definition."""

    span: Span
    body_indent: str | None
    is_class: bool


@dataclass(frozen=True)
class Source:
    """One file. `lines` have no line ends; `newline` is what they had."""

    lines: tuple[str, ...]
    newline: str
    tree: ast.Module = field(compare=False)

    @cached_property
    def symbols(self) -> dict[str, tuple[Symbol, ...]]:
        """Qualified name to its definitions, in the order of the file; overloads and branches give several."""
        found: dict[str, list[Symbol]] = {}
        for name, node in _definitions(self.tree, ""):
            found.setdefault(name, []).append(self._symbol(node))
        return {name: tuple(symbols) for name, symbols in found.items()}

    @cached_property
    def _statements(self) -> tuple[ast.stmt, ...]:
        found, stack = [], list(self.tree.body)
        while stack:
            statement = stack.pop()
            found.append(statement)
            for name in _BLOCKS:
                stack.extend(getattr(statement, name, ()))
            for holder in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                stack.extend(holder.body)
        return tuple(found)

    @cached_property
    def simple_statements(self) -> tuple[Span, ...]:
        """Statements of more than one line that hold no other statement; nothing may be inserted inside one."""
        simple = (node for node in self._statements if _is_simple(node))
        spans = ((node.lineno - 1, node.end_lineno or node.lineno) for node in simple)
        return tuple(span for span in spans if span[1] - span[0] > 1)

    @cached_property
    def docstrings(self) -> tuple[Span, ...]:
        """Lines that are a string and nothing else."""
        return tuple(
            (node.lineno - 1, node.end_lineno or node.lineno)
            for node in self._statements
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )

    @property
    def carries_footer(self) -> bool:
        return any(line.startswith(f"{FOOTER_NAME} = ") for line in self.lines)

    def spans(self, symbol: str) -> tuple[Span, ...]:
        """The lines of a symbol, those of the whole file for "", nothing when it is not there."""
        if not symbol:
            return ((0, len(self.lines)),)
        return tuple(found.span for found in self.symbols.get(symbol, ()))

    def own_spans(self, symbol: str) -> tuple[Span, ...]:
        """The lines of a symbol, without those of the functions and classes inside of a function.

        A line that upstream moved into an inner function is not where an edit of the outer one was meant to be.
        """
        pieces: list[Span] = []
        for found, span in zip(self.symbols.get(symbol, ()), self.spans(symbol), strict=False):
            if not found.is_class:
                inner = (each.span for name, many in self.symbols.items() for each in many if _inside(name, symbol))
                pieces += _without(span, sorted(each for each in inner if span[0] <= each[0] and each[1] <= span[1]))
            else:
                pieces.append(span)
        return tuple(pieces) if symbol else self.spans(symbol)

    def digest(self, symbol: str) -> str:
        """sha256 over the symbol's dedented text, so that moving it as a whole keeps the digest."""
        texts = ("\n".join(self.lines[start:end]) for start, end in self.spans(symbol))
        return hashlib.sha256("\n".join(textwrap.dedent(text) for text in texts).encode()).hexdigest()

    def _symbol(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Symbol:
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        first = node.body[0].lineno - 1
        header = self.lines[first][: node.body[0].col_offset]
        return Symbol(
            span=(start, node.end_lineno or node.lineno),
            body_indent=None if header.strip() else header,
            is_class=isinstance(node, ast.ClassDef),
        )


def _inside(name: str, symbol: str) -> bool:
    return name.startswith(f"{symbol}.")


def _without(span: Span, holes: Sequence[Span]) -> list[Span]:
    pieces, start = [], span[0]
    for first, last in holes:
        if first >= start:
            pieces.append((start, first))
            start = last
    return [piece for piece in [*pieces, (start, span[1])] if piece[0] < piece[1]]


@lru_cache(maxsize=24)
def parse_source(data: bytes) -> Source:
    """Read one file. SyntaxError or UnicodeDecodeError when it is not Python text.

    Several patches look at the same few files of an engine, so the last ones are kept.
    """
    text = data.decode("utf-8")
    newline = "\r\n" if "\r\n" in text else "\n"
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return Source(tuple(lines), newline, ast.parse(text))


def code_lines(lines: Sequence[str]) -> list[str]:
    """The lines without indentation, blank lines and whole-line comments: what would change if the code changed."""
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if line and not line.startswith("#")]


def _definitions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}"
            yield name, child
            yield from _definitions(child, f"{name}.")
        elif not isinstance(child, ast.expr):
            yield from _definitions(child, prefix)


def _is_simple(node: ast.stmt) -> bool:
    return not hasattr(node, "body") and not isinstance(node, ast.Match)
