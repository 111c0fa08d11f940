"""Names of an engine's source tree, resolved through its imports with `ast` alone; nothing is imported or run."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator
from typing import Protocol

_PACKAGE = "vllm"
_MAX_HOPS = 12


class Readable(Protocol):
    """Source files by their path below the `vllm` package; FileNotFoundError when there is none."""

    def read(self, relative: str) -> bytes: ...


class Definition:
    """What a name means: the node that defines it and the file that it stands in."""

    def __init__(self, file: str, node: ast.AST) -> None:
        self.file = file
        self.node = node


class SourceNames:
    """Parsed modules of one tree, and what a name means in each of them."""

    def __init__(self, tree: Readable) -> None:
        self._tree = tree
        self._modules: dict[str, ast.Module | None] = {}

    def module(self, file: str) -> ast.Module | None:
        """The parsed file; None where the tree has no such file."""
        if file not in self._modules:
            try:
                self._modules[file] = ast.parse(self._tree.read(file))
            except (FileNotFoundError, SyntaxError):
                self._modules[file] = None
        return self._modules[file]

    def lookup(self, file: str, name: str, hops: int = _MAX_HOPS) -> Definition | None:
        """The definition of `name` as seen in `file`: its own class or value, else where it is imported from."""
        module = self.module(file)
        if module is None or hops == 0:
            return None
        for statement in runtime_statements(module.body):
            found = _defines(statement, name)
            if found is not None:
                return Definition(file, found)
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        target = self._file_of(file, node)
                        return self.lookup(target, alias.name, hops - 1) if target else None
        return None

    def fields(self, file: str, class_name: str) -> dict[str, Definition]:
        """The annotated fields of a class, those of its bases first."""
        found = self.lookup(file, class_name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return {}
        result: dict[str, Definition] = {}
        for base in found.node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(name, ast.Name):
                result |= self.fields(found.file, name.id)
        for statement in found.node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                result[statement.target.id] = Definition(found.file, statement)
        return result

    def _file_of(self, file: str, node: ast.ImportFrom) -> str | None:
        dotted = node.module or ""
        if node.level:
            folder = posixpath.dirname(file)
            for _ in range(node.level - 1):
                folder = posixpath.dirname(folder)
            path = posixpath.join(folder, *dotted.split(".")) if dotted else folder
        elif dotted == _PACKAGE or dotted.startswith(f"{_PACKAGE}."):
            path = "/".join(dotted.split(".")[1:])
        else:
            return None
        for candidate in (f"{path}.py", posixpath.join(path, "__init__.py")):
            if self.module(candidate) is not None:
                return candidate
        return None


def runtime_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Module-level statements as they run: of `if TYPE_CHECKING: … else: …` only the else branch."""
    for node in body:
        if isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from runtime_statements(node.body)
            yield from runtime_statements(node.orelse)
        elif isinstance(node, ast.Try):
            yield from runtime_statements(node.body)
        else:
            yield node


def _defines(node: ast.stmt, name: str) -> ast.AST | None:
    if isinstance(node, ast.ClassDef):
        return node if node.name == name else None
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    else:
        return None
    return node.value if any(isinstance(target, ast.Name) and target.id == name for target in targets) else None
