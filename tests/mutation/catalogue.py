"""The mutants of a module: what each shows to a reader, which tests can see it, and the code that it makes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from tests.mutation import sites

Spot = tuple[int, int]


class Mutant(NamedTuple):
    """One change of one module, which `name` shows as its path.

    `scope` is the outermost function whose body it lies in, `constant` the name of the module that it gives another
    value; where both are empty the module must be read anew. `spots` are the line ranges of which a test must run one
    to see it; without any, every line of the module may do. `key` names it without a line number, since those move.
    """

    name: str
    number: int
    line: int
    scope: str
    constant: str
    spots: tuple[Spot, ...]
    change: str
    key: str

    def __str__(self) -> str:
        return f"{self.name}:{self.line}: {self.change}"


class Module:
    """One parsed module and all its mutants, in the order of its text."""

    def __init__(self, file: Path, name: str, imported: Collection[str]) -> None:
        """`imported`: what others import from it by name; they would not see it change in a running process."""
        self.file, self.name, self._imported = file, name, imported
        self._tree = ast.parse(file.read_text(encoding="utf-8"))
        self._sites = tuple(sites.sites(self._tree))
        self.mutants = tuple(self._mutants())

    def code(self, mutant: Mutant) -> CodeType:
        """The whole module with the mutant in it."""
        with self._changed(self._sites[mutant.number]):
            return compile(ast.fix_missing_locations(self._tree), str(self.file), "exec", dont_inherit=True)

    def statement_code(self, mutant: Mutant) -> CodeType:
        """The one statement of the module that the mutant lies in."""
        site = self._sites[mutant.number]
        with self._changed(site):
            body = ast.Module([_at(self._tree, site.path[:1])], [])  # type: ignore[list-item]
            return compile(ast.fix_missing_locations(body), str(self.file), "exec", dont_inherit=True)

    def _mutants(self) -> Iterator[Mutant]:
        users = _users(self._tree)
        seen: Counter[str] = Counter()
        for number, site in enumerate(self._sites):
            node, before = _at(self._tree, site.path), _shown(_at(self._tree, site.shown))
            with self._changed(site):
                change = f"{before} -> {_shown(_at(self._tree, site.shown))}"
            place = " ".join((self.name, site.scope or site.owner.rstrip("."))).strip()
            key = f"{place}: {change}"
            seen[key] += 1
            if seen[key] > 1:
                key += f" (no. {seen[key]})"
            constant = "" if site.scope or site.owner else _target(site.statement)
            constant = constant if constant in users and constant not in self._imported else ""
            spots = (_header(site.statement),) if site.scope else tuple(users.get(constant, ()))
            line = getattr(node, "lineno", site.statement.lineno)
            yield Mutant(self.name, number, line, site.scope, constant, spots, change, key)

    @contextmanager
    def _changed(self, site: sites.Site) -> Iterator[None]:
        parent, (field, index) = _at(self._tree, site.path[:-1]), site.path[-1]
        old = _at(self._tree, site.path)
        holder = getattr(parent, field)
        _put(parent, field, index, ast.copy_location(site.make(old), old))
        try:
            yield
        finally:
            _put(parent, field, index, old)
            assert getattr(parent, field) is holder


def modules(package: Path, folders: Sequence[str], tests: Sequence[Path]) -> list[Module]:
    """The modules of some folders of a package, each shown by its path from there; `tests` may import them."""
    imported: dict[str, set[str]] = {}
    for place in (package, *tests):
        for file in place.rglob("*.py") if place.is_dir() else [place]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    imported.setdefault(node.module, set()).update(alias.name for alias in node.names)
    found = []
    for file in (file for folder in folders for file in sorted((package / folder).rglob("*.py"))):
        dotted = ".".join(file.relative_to(package.parent).with_suffix("").parts)
        found.append(Module(file, file.relative_to(package).as_posix(), imported.get(dotted, ())))
    return found


def _at(tree: ast.AST, path: sites.Path) -> ast.AST:
    for field, index in path:
        value = getattr(tree, field)
        tree = value if index is None else value[index]
    return tree


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _shown(node: ast.AST) -> str:
    """A piece of code on one line; of a statement that holds others, only its head."""
    if isinstance(node, ast.FunctionDef):
        return f"def {node.name}({ast.unparse(node.args)})"
    text = ast.unparse(node)
    return text.split("\n")[0] if hasattr(node, "body") and isinstance(node, ast.stmt) else " ".join(text.split())


def _header(statement: ast.stmt) -> Spot:
    """First and last line of a statement without the statements inside it."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return statement.lineno, max(last, statement.lineno)


def _users(tree: ast.Module) -> dict[str, list[Spot]]:
    """The statements in function bodies that read each name; no entry for one that is read elsewhere too."""
    inside: dict[str, list[Spot]] = {}
    outside: set[str] = set()

    def walk(node: ast.AST, statement: ast.stmt | None, within: bool) -> None:
        if isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and statement is not None:
            if within:
                inside.setdefault(node.id, []).append(_header(statement))
            else:
                outside.add(node.id)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST):
                    walk(child, statement, within or (isinstance(node, ast.FunctionDef) and field == "body"))

    walk(tree, None, False)
    return {name: spots for name, spots in inside.items() if name not in outside}


def _target(statement: ast.stmt) -> str:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""
