"""Draw the end of a terminal session as an SVG, for the README.

make demo | tee demo.log; python scripts/terminal_svg.py docs/demo.svg --lines 26 <demo.log
"""

from __future__ import annotations

import argparse
import re
import sys
from html import escape
from pathlib import Path

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_LINE_HEIGHT, _CHAR_WIDTH, _MARGIN, _MAX_COLUMNS = 18, 7.8, 16, 118


def draw(lines: list[str]) -> str:
    """One text element per line on a dark card; colours by what the line says."""
    width = round(max(map(len, lines)) * _CHAR_WIDTH + 2 * _MARGIN)
    height = len(lines) * _LINE_HEIGHT + 2 * _MARGIN
    rows = [
        f'<text x="{_MARGIN}" y="{_MARGIN + (index + 1) * _LINE_HEIGHT - 5}" fill="{_colour(line)}" '
        f'xml:space="preserve">{escape(line)}</text>'
        for index, line in enumerate(lines)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" role="img">',
            f'<title>{escape(lines[-1])}</title><rect width="100%" height="100%" rx="8" fill="#16181d"/>',
            *rows,
            "</svg>",
            "",
        ]
    )


def _colour(line: str) -> str:
    if line.startswith(("== ", "demo:")):
        return "#8ab4f8"
    if line.startswith("$ "):
        return "#f2f2f2"
    return "#b9c0c9"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("output", type=Path)
    arguments.add_argument("--lines", type=int, default=26)
    options = arguments.parse_args()
    text = [_ESCAPES.sub("", line.rstrip())[:_MAX_COLUMNS] for line in sys.stdin]
    options.output.write_text(draw(text[-options.lines :]))


if __name__ == "__main__":
    main()
