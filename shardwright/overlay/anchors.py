"""Find the place of one edit in a pristine file, or say exactly why there is none."""

from __future__ import annotations

import contextlib
import io
import textwrap
import tokenize
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches

from shardwright.overlay.edits import Edit
from shardwright.overlay.source import Source, Span, code_lines
from shardwright.overlay.verdicts import Verdict


@dataclass(frozen=True)
class Splice:
    """Replace the lines `span` by `lines`. `anchor` is what was found; an empty span inserts before its start."""

    span: Span
    anchor: Span
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """Why an edit has no place: the verdict, one line of explanation, and what to do."""

    verdict: Verdict
    message: str
    fix: str


def place(edit: Edit, source: Source) -> tuple[Splice, ...] | Refusal:
    """The splices of one edit, as many as its `count`; anchors are whole lines inside the edit's symbol."""
    spans = source.own_spans(edit.symbol)
    if not spans:
        return _symbol_gone(edit, source)
    if edit.op == "append_symbol":
        return _append(edit, source)
    anchor = _dedented(edit.find)
    matches = [match for span in spans for match in _matches(anchor, source.lines, span)]
    if stands := _already(edit, source, spans, matches):
        return Refusal(Verdict.ALREADY, f"the body stands at line {stands} already", "drop the edit for this version")
    if not matches:
        return _anchor_gone(edit, anchor, source, spans)
    if len(matches) != edit.count:
        lines = ", ".join(str(match[0] + 1) for match in matches)
        return Refusal(
            Verdict.ANCHOR_AMBIGUOUS,
            f"found {len(matches)} times, at lines {lines}, not {edit.count}",
            "find more lines, name a narrower symbol, or correct count",
        )
    splices = tuple(_splice(edit, source, match) for match in matches)
    return next((refusal for splice in splices if (refusal := _harm(edit, source, splice))), splices)


def _already(edit: Edit, source: Source, spans: tuple[Span, ...], matches: list[Span]) -> int:
    """The line, from 1, at which the body stands where the edit would put it; 0 when it does not."""
    body = _dedented(edit.body)
    if not code_lines(body):
        return 0
    present = [match for span in spans for match in _matches(body, source.lines, span)]
    if edit.op == "replace" and matches:
        return 0
    if edit.op in ("before", "after") and matches:
        sides = {before[0] for before in matches} if edit.op == "before" else {match[1] for match in matches}
        present = [found for found in present if (found[1] if edit.op == "before" else found[0]) in sides]
    elif edit.op in ("before", "after"):
        present = []
    return present[0][0] + 1 if present else 0


def _matches(anchor: list[str], lines: tuple[str, ...], span: Span) -> list[Span]:
    matches = []
    index, end = span
    while index + len(anchor) <= end:
        if _matches_at(anchor, lines, index):
            matches.append((index, index + len(anchor)))
            index += len(anchor)
        else:
            index += 1
    return matches


def _matches_at(anchor: list[str], lines: tuple[str, ...], index: int) -> bool:
    if not lines[index].endswith(anchor[0]):
        return False
    indent = lines[index].removesuffix(anchor[0])
    if indent.strip():
        return False
    return all(
        lines[index + offset] == indent + text if text else not lines[index + offset].strip()
        for offset, text in enumerate(anchor)
    )


def _splice(edit: Edit, source: Source, match: Span) -> Splice:
    start, end = match
    first = source.lines[start]
    body = _indented(edit.body, first[: len(first) - len(first.lstrip())])
    spans = {"before": (start, start), "after": (end, end), "replace": (start, end)}
    return Splice(spans[edit.op], match, body)


def _append(edit: Edit, source: Source) -> tuple[Splice, ...] | Refusal:
    if not edit.symbol:
        end = len(source.lines)
        if stands := _already(edit, source, ((0, end),), []):
            return Refusal(
                Verdict.ALREADY, f"the body stands at line {stands} already", "drop the edit for this version"
            )
        return (Splice((end, end), (end, end), ("", "", *_indented(edit.body, ""))),)
    symbols = source.symbols[edit.symbol]
    if len(symbols) > 1:
        lines = ", ".join(str(symbol.span[0] + 1) for symbol in symbols)
        return Refusal(
            Verdict.ANCHOR_AMBIGUOUS, f"the symbol is defined at lines {lines}", "use op after with a line to find"
        )
    (symbol,) = symbols
    if stands := _already(edit, source, (symbol.span,), []):
        return Refusal(Verdict.ALREADY, f"the body stands at line {stands} already", "drop the edit for this version")
    if symbol.body_indent is None:
        return Refusal(
            Verdict.BREAKS_SYNTAX,
            f"the symbol is written on one line ({symbol.span[0] + 1}), so nothing can follow in it",
            "use op replace with that line",
        )
    end = symbol.span[1]
    gap = ("",) if symbol.is_class else ()
    splice = Splice((end, end), (end, end), (*gap, *_indented(edit.body, symbol.body_indent)))
    return _harm(edit, source, splice) or (splice,)


def _harm(edit: Edit, source: Source, splice: Splice) -> Refusal | None:
    start, end = splice.span
    body_code = code_lines(splice.lines)
    if start == end:
        for first, last in source.simple_statements:
            if first < start < last:
                return Refusal(
                    Verdict.BREAKS_SYNTAX,
                    f"the body would land inside the statement at lines {first + 1} to {last}",
                    "find the first or last line of that statement",
                )
        if not body_code:
            return Refusal(Verdict.NO_OP, "the body holds no code", "write the body, or drop the edit")
    elif any(first <= start and end <= last for first, last in source.docstrings):
        return Refusal(Verdict.NO_OP, f"line {start + 1} is text of a docstring, not code", "find a line of code")
    elif body_code == code_lines(source.lines[start:end]):
        return Refusal(Verdict.NO_OP, f"line {start + 1} already reads like the body", "drop the edit")
    return None


def _symbol_gone(edit: Edit, source: Source) -> Refusal:
    last = edit.symbol.rpartition(".")[2]
    elsewhere = [name for name in source.symbols if name.rpartition(".")[2] == last]
    close = get_close_matches(edit.symbol, list(source.symbols), n=3, cutoff=0.5)
    near = list(dict.fromkeys([*close, *elsewhere]))[:3]
    return Refusal(
        Verdict.SYMBOL_GONE,
        f"no such symbol in {edit.module}" + (f"; closest: {', '.join(near)}" if near else ""),
        "read how upstream changed it, then add a variant with the new symbol",
    )


def _anchor_gone(edit: Edit, anchor: list[str], source: Source, spans: tuple[Span, ...]) -> Refusal:
    wanted = "\n".join(line.strip() for line in anchor)
    best_ratio, best_line, best_text = 0.0, 0, ""
    for start, end in spans:
        for index in range(start, max(start + 1, end - len(anchor) + 1)):
            text = "\n".join(line.strip() for line in source.lines[index : index + len(anchor)])
            matcher = SequenceMatcher(None, text, wanted, autojunk=False)
            if matcher.real_quick_ratio() <= best_ratio or matcher.quick_ratio() <= best_ratio:
                continue
            if (ratio := matcher.ratio()) > best_ratio:
                best_ratio, best_line, best_text = ratio, index + 1, text
    nearest = (
        f"; nearest {best_ratio:.0%} at line {best_line}: {' / '.join(best_text.splitlines())[:160]}"
        if best_ratio
        else ""
    )
    return Refusal(
        Verdict.ANCHOR_GONE,
        f"not found: {' / '.join(wanted.splitlines())[:160]}{nearest}",
        "read how upstream changed it, then add a variant with the new line",
    )


def _dedented(text: str) -> list[str]:
    return textwrap.dedent(text.rstrip()).lstrip("\n").split("\n")


def _indented(body: str, indent: str) -> tuple[str, ...]:
    text = textwrap.dedent(body).removesuffix("\n")
    inside_strings = _string_continuations(text) if indent else frozenset()
    return tuple(
        indent + line if line.strip() and number not in inside_strings else line
        for number, line in enumerate(text.split("\n"), start=1)
    )


def _string_continuations(text: str) -> frozenset[int]:
    """Lines, from 1, that begin inside a string: indentation would become part of its value."""
    kinds = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    lines: set[int] = set()
    # A fragment need not be complete Python by itself; what was read before the error is what there is to protect.
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in kinds:
                lines.update(range(token.start[0] + 1, token.end[0] + 1))
    return frozenset(lines)
