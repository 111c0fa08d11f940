"""Where a module can be mutated: which nodes decide something, and what each may become.

Mutated are: comparison operators (`<` to `<=` and `>=`, `==` to `!=`, `in` to `not in`, `is` to `is not`, and back),
`and` and `or`, `not`, `True` and `False`, numbers (one more, one less), version bounds in text such as `>=0.30` (one
more, one less), and other strings that decide. A string decides when it holds no white space, or when it is compared,
looked up or searched for. Left alone are docstrings, annotations and `Literal`, f-strings, what a finding or an error
says, assertions (also `strict=`), and the keywords of a class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ORDER = {ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt)}
OPPOSITE = {ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot}
SWAPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    **ORDER,
    **{kind: (other,) for kind, other in OPPOSITE.items()},
    **{other: (kind,) for kind, other in OPPOSITE.items()},
}
# Calls whose string arguments are looked up or searched for, also where they hold white space.
LOOKUPS = frozenset(
    {
        "get",
        "pop",
        "startswith",
        "endswith",
        "partition",
        "rpartition",
        "split",
        "rsplit",
        "removeprefix",
        "removesuffix",
    }
    | {"replace", "find", "index", "count", "strip", "lstrip", "rstrip"}
    | {"compile", "search", "match", "fullmatch", "findall", "finditer", "sub"}
)
REPORT_TEXTS = frozenset({"message", "why", "fix", "evidence"})
VERSION_BOUND = re.compile(r"[<>=!]=?\d+(?:\.\d+)+")
OTHER_STRING = "mutant"
SHOWN = (ast.stmt, ast.Compare, ast.BoolOp, ast.Call, ast.Subscript, ast.BinOp, ast.IfExp, ast.Tuple, ast.Set, ast.Dict)

Step = tuple[str, int | None]
Path = tuple[Step, ...]


class Site(NamedTuple):
    """One change: `make` gives the new node for the one at `path`.

    `statement` is the innermost one around it, `scope` the outermost function whose body it lies in, `owner` the class
    around that; `shown` is the path of the piece of code that shows the change to a reader.
    """

    path: Path
    make: Callable[[Any], ast.AST]
    statement: ast.stmt
    scope: str
    owner: str
    shown: Path


class _Place(NamedTuple):
    path: Path
    statement: ast.stmt
    shown: Path
    scope: str = ""
    owner: str = ""
    text: bool = False
    """Inside what a finding or an error says."""
    lookup: bool = False
    """A string here decides, white space or not."""


def sites(tree: ast.Module) -> Iterator[Site]:
    """All changes that one module can suffer, in the order of its text."""
    for index, statement in enumerate(tree.body):
        path: Path = (("body", index),)
        yield from _visit(statement, _Place(path, statement, path))


def _visit(node: ast.AST, place: _Place) -> Iterator[Site]:
    if _is_left_alone(node):
        return
    if isinstance(node, ast.stmt):
        place = place._replace(statement=node)
    if isinstance(node, SHOWN):
        yield from _changes(node, place)
        place = place._replace(shown=place.path)
    else:
        yield from _changes(node, place)
    for step, child in _children(node):
        yield from _visit(child, place._replace(path=(*place.path, step), **_news(node, step, child, place)))


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return _name(node.value) == "Literal"
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    return isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr)


def _name(function: ast.AST) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _children(node: ast.AST) -> Iterator[tuple[Step, ast.AST]]:
    skipped = {"annotation", "returns", "decorator_list"}
    if isinstance(node, ast.ClassDef):
        skipped |= {"bases", "keywords"}
    for field, value in ast.iter_fields(node):
        if field not in skipped:
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.AST):
                    yield (field, index), child


def _news(node: ast.AST, step: Step, child: ast.AST, place: _Place) -> dict[str, Any]:
    """What becomes different on the way from a node to one of its parts."""
    field, index = step
    if isinstance(node, ast.FunctionDef) and field == "body" and not place.scope:
        return {"scope": place.owner + node.name}
    if isinstance(node, ast.ClassDef):
        return {"owner": f"{place.owner}{node.name}."}
    if isinstance(node, ast.Compare) or (isinstance(node, ast.Subscript | ast.Dict) and field in ("slice", "keys")):
        return {"lookup": True, "text": False}
    if isinstance(node, ast.Call) and field in ("args", "keywords"):
        name = _name(node.func)
        if name in LOOKUPS:
            return {"lookup": True, "text": False}
        told = index is not None and index >= 2 if field == "args" else getattr(child, "arg", "") in REPORT_TEXTS
        return {"lookup": False, "text": place.text or name.endswith("Error") or (name == "Finding" and told)}
    return {}


def _changes(node: ast.AST, place: _Place) -> Iterator[Site]:
    def site(make: Callable[[Any], ast.AST], shown: Path) -> Site:
        return Site(place.path, make, place.statement, place.scope, place.owner, shown)

    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for other in SWAPS[type(operator)]:
                yield site(_with_operator(index, other), place.path)
    elif isinstance(node, ast.BoolOp):
        yield site(_swapped, place.path)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield site(lambda found: found.operand, place.path)
    elif isinstance(node, ast.Constant):
        for value in _other_values(node.value, place):
            yield site(_constant(value), place.shown)


def _with_operator(index: int, other: type[ast.cmpop]) -> Callable[[ast.Compare], ast.AST]:
    def make(node: ast.Compare) -> ast.AST:
        return ast.Compare(node.left, [*node.ops[:index], other(), *node.ops[index + 1 :]], node.comparators)

    return make


def _swapped(node: ast.BoolOp) -> ast.AST:
    return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _constant(value: Any) -> Callable[[ast.AST], ast.AST]:
    return lambda _: ast.Constant(value)


def _other_values(value: object, place: _Place) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        yield value - 1
    elif isinstance(value, str) and not place.text and (place.lookup or not re.search(r"\s", value)):
        bounds = list(VERSION_BOUND.finditer(value))
        for bound in bounds:
            head, _, last = bound.group().rpartition(".")
            for number in (int(last) + 1, int(last) - 1):
                yield f"{value[: bound.start()]}{head}.{number}{value[bound.end() :]}"
        if not bounds:
            yield OTHER_STRING
