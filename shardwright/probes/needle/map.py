"""The needle trials as a map, length by depth: text for a terminal, SVG for a report, and an HTML page.

Colours are those of Okabe and Ito, which stay apart for colour-blind eyes; every cell has a letter too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from shardwright.probes.journal import Record
from shardwright.probes.needle.judge import NeedleClass, judge_trial


@dataclass(frozen=True)
class Mark:
    """How a class is shown: its letter, the colour of its cell and of the letter."""

    letter: str
    fill: str
    ink: str


MARKS: Mapping[NeedleClass, Mark] = {
    NeedleClass.EXACT: Mark("E", "#56B4E9", "#000000"),
    NeedleClass.NEAR: Mark("N", "#F0E442", "#000000"),
    NeedleClass.DISTRACTOR: Mark("D", "#E69F00", "#000000"),
    NeedleClass.WRONG: Mark("W", "#D55E00", "#000000"),
    NeedleClass.ABSTAIN: Mark("A", "#CC79A7", "#000000"),
    NeedleClass.EMPTY_BUDGET: Mark("B", "#DDDDDD", "#000000"),
    NeedleClass.STALL: Mark("S", "#0072B2", "#FFFFFF"),
    NeedleClass.ERROR: Mark("X", "#000000", "#FFFFFF"),
}
NOT_ASKED = "."

_WORST_FIRST = (
    NeedleClass.WRONG,
    NeedleClass.ABSTAIN,
    NeedleClass.DISTRACTOR,
    NeedleClass.NEAR,
    NeedleClass.STALL,
    NeedleClass.ERROR,
    NeedleClass.EMPTY_BUDGET,
    NeedleClass.EXACT,
)
_ORDER = ("cold", "warm", "thinking", "concurrent")
_CELL_W, _CELL_H, _LEFT, _LINE = 44, 26, 130, 18


@dataclass(frozen=True)
class Grid:
    """One pass: `cells[length, depth]` holds the worst class of that place and the name of its trial."""

    name: str
    lengths: tuple[int, ...]
    depths: tuple[int, ...]
    cells: Mapping[tuple[int, int], tuple[NeedleClass, str]]


def grids(records: Iterable[Record]) -> list[Grid]:
    """One grid for each pass on file; a trial that was asked again after an error counts by its last answer."""
    last: dict[str, Record] = {}
    for record in records:
        if record["kind"] == "trial" and record.get("probe") == "needle" and "target_tokens" in record:
            known = last.get(record["trial"])
            if known is None or known["class"] == NeedleClass.ERROR:
                last[record["trial"]] = record
    by_pass: dict[str, dict[tuple[int, int], tuple[NeedleClass, str]]] = {}
    for key, record in last.items():
        cells = by_pass.setdefault(str(record["pass"]), {})
        place = (int(record["target_tokens"]), int(record["depth_percent"]))
        outcome = judge_trial(record).outcome
        known_class = cells.get(place)
        if known_class is None or _WORST_FIRST.index(outcome) < _WORST_FIRST.index(known_class[0]):
            cells[place] = (outcome, key)
    return [
        Grid(name, tuple(sorted({p[0] for p in cells})), tuple(sorted({p[1] for p in cells})), cells)
        for name, cells in sorted(by_pass.items(), key=lambda item: _ORDER.index(item[0]))
    ]


def text_map(records: Iterable[Record]) -> str:
    """Plain text: a block for each pass, lengths downwards, depths across, one letter a cell, and a legend."""
    blocks = []
    found = grids(records)
    for grid in found:
        head = f"{grid.name:>10}  " + " ".join(f"{depth:>4}%" for depth in grid.depths)
        rows = [
            f"{length:>10}  " + " ".join(f"{_letter(grid, length, depth):>5}" for depth in grid.depths)
            for length in grid.lengths
        ]
        blocks.append("\n".join([head, *rows]))
    return "\n\n".join([*blocks, *([_legend_text(found)] if found else [])])


def svg_map(records: Iterable[Record], title: str = "Needle in a haystack") -> str:
    """A standalone SVG picture with a tooltip on every cell; it can be put into an HTML page as it is."""
    found = grids(records)
    parts: list[str] = []
    y = _LINE + 8
    width = max([_LEFT + _CELL_W * max(len(grid.depths), 1) + 10 for grid in found], default=_LEFT)
    for grid in found:
        parts += _svg_grid(grid, y)
        y += _LINE * 2 + _CELL_H * len(grid.lengths) + 14
    seen = _seen(found)
    for place, outcome in enumerate(seen):
        mark = MARKS[outcome]
        row_y = y + place * _LINE
        parts.append(f'<rect x="10" y="{row_y - 12}" width="16" height="14" fill="{mark.fill}" stroke="#666666"/>')
        parts.append(_text(18, row_y, mark.letter, anchor="middle", ink=mark.ink, size=11))
        parts.append(_text(34, row_y, str(outcome)))
    height = y + _LINE * len(seen)
    width = max(width, 220, 20 + 8 * len(title))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="sans-serif" font-size="12"><title>{escape(title)}</title>'
        f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>'
    )
    return "\n".join([head, _text(10, _LINE, title, size=14), *parts, "</svg>"]) + "\n"


def html_map(records: Iterable[Record], title: str = "Needle in a haystack") -> str:
    """A page with the picture, and below it the text of every trial that was not exact."""
    kept = list(records)
    rows = []
    for grid in grids(kept):
        for (length, depth), (outcome, key) in sorted(grid.cells.items()):
            if outcome is not NeedleClass.EXACT:
                record = next(r for r in reversed(kept) if r.get("trial") == key)
                said = str(record.get("text", ""))[:300] or str(record.get("detail", ""))
                cells = (grid.name, str(length), f"{depth} %", str(outcome), str(record.get("expected", "")), said)
                rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    names = ("pass", "tokens", "depth", "class", "expected", "answer")
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    table = "\n".join(["<table>", head, *rows, "</table>"]) if rows else "<p>Every trial was exact.</p>"
    style = "body{font-family:sans-serif}td,th{text-align:left;padding:2px 8px;border-bottom:1px solid #ccc}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body>\n{svg_map(kept, title)}{table}\n</body></html>\n"
    )


def _svg_grid(grid: Grid, top: int) -> list[str]:
    parts = [_text(10, top + _LINE, f"{grid.name}, tokens")]
    for column, depth in enumerate(grid.depths):
        parts.append(_text(_LEFT + column * _CELL_W + _CELL_W // 2, top + _LINE, f"{depth} %", anchor="middle"))
    for row, length in enumerate(grid.lengths):
        y = top + _LINE + 6 + row * _CELL_H
        parts.append(_text(_LEFT - 8, y + 17, f"{length:,}", anchor="end"))
        for column, depth in enumerate(grid.depths):
            found = grid.cells.get((length, depth))
            if found is None:
                continue
            outcome, key = found
            mark, x = MARKS[outcome], _LEFT + column * _CELL_W
            parts.append(
                f'<g><title>{escape(key)}: {outcome}</title><rect x="{x}" y="{y}" width="{_CELL_W - 2}" '
                f'height="{_CELL_H - 2}" fill="{mark.fill}" stroke="#666666"/>'
                + _text(x + _CELL_W // 2 - 1, y + 17, mark.letter, anchor="middle", ink=mark.ink)
                + "</g>"
            )
    return parts


def _text(x: int, y: int, text: str, *, anchor: str = "start", ink: str = "#000000", size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{ink}" font-size="{size}">{escape(text)}</text>'


def _letter(grid: Grid, length: int, depth: int) -> str:
    found = grid.cells.get((length, depth))
    return MARKS[found[0]].letter if found else NOT_ASKED


def _seen(found: Sequence[Grid]) -> list[NeedleClass]:
    classes = {outcome for grid in found for outcome, _ in grid.cells.values()}
    return [outcome for outcome in NeedleClass if outcome in classes]


def _legend_text(found: Sequence[Grid]) -> str:
    return "  ".join(f"{MARKS[outcome].letter} {outcome}" for outcome in _seen(found))
