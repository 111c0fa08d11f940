"""Find code like an edit's anchor among what a model really runs: where the change may have to go instead, or too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from shardwright.connect.trees import SourceTree
from shardwright.overlay.edits import Edit
from shardwright.overlay.reach import Closure
from shardwright.overlay.source import parse_source

_LIKE_ENOUGH = 0.7
_MOST = 3
_PRIVATE = re.compile(r"\b_+")
"""Upstream renames `_x` to `x` when it moves code into a class of its own."""


def similar_code(edit: Edit, closures: Sequence[Closure], tree: SourceTree) -> tuple[str, ...]:
    """Up to three places as `path:line in Symbol`, the most alike first; the edit's own symbol is not one of them."""
    anchor = _plain((edit.find.strip() or edit.body.strip()).splitlines()[0])
    own = f"{edit.module}:{edit.symbol}"
    found: dict[str, float] = {}
    for module in sorted({module for closure in closures for module in closure.modules}):
        path = module.removeprefix("vllm.").replace(".", "/") + ".py"
        try:
            source = parse_source(tree.read(path))
        except (OSError, SyntaxError, ValueError):
            continue
        live = {symbol for closure in closures for symbol in closure.symbols}
        functions = [
            (name, symbol.span)
            for name, symbols in source.symbols.items()
            for symbol in symbols
            if not symbol.is_class and f"{module}:{name}" in live and f"{module}:{name}" != own
        ]
        matcher = SequenceMatcher(None, "", anchor, autojunk=False)
        for name, (start, end) in functions:
            for index in range(start, end):
                matcher.set_seq1(_plain(source.lines[index]))
                if matcher.real_quick_ratio() >= _LIKE_ENOUGH and matcher.quick_ratio() >= _LIKE_ENOUGH:
                    ratio = matcher.ratio()
                    if ratio >= _LIKE_ENOUGH:
                        found[f"{path}:{index + 1} in {name}"] = ratio
    return tuple(sorted(found, key=lambda place: -found[place])[:_MOST])


def _plain(line: str) -> str:
    return _PRIVATE.sub("", line.strip())
