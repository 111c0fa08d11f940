"""What the inserted code needs and the engine does not have: imports that lead nowhere, names that nothing defines."""

from __future__ import annotations

import ast
import builtins
import symtable
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache

from shardwright.connect.trees import PACKAGE, SourceTree
from shardwright.overlay.edits import ADDITIVE_PACKAGE

_MODULE_NAMES = frozenset({"__name__", "__file__", "__doc__", "__package__", "__spec__", "__path__", "__overlay__"})


class ImportCheck:
    """Looks up imports of the engine's own modules in one tree; `added`: text of each module that the patches add."""

    def __init__(self, tree: SourceTree, added: Mapping[str, str]) -> None:
        self._tree = tree
        self._added = added
        self._names: dict[str, frozenset[str] | None] = {}

    def missing(self, body: str) -> tuple[str, ...]:
        """The imports of `body` that this engine cannot give, as `module` or `module.name`."""
        try:
            module = ast.parse(textwrap.dedent(body))
        except SyntaxError:
            return ()
        found = (self._missing_of(node) for node in ast.walk(module))
        return tuple(dict.fromkeys(name for names in found for name in names))

    def _missing_of(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _ours(alias.name) and not self._exists(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and _ours(node.module):
            if not self._exists(node.module):
                yield node.module
                return
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if alias.name != "*" and not self._defines(node.module, alias.name) and not self._exists(submodule):
                    yield submodule

    def _exists(self, module: str) -> bool:
        if module in self._added or (self._added and module == f"{PACKAGE}.{ADDITIVE_PACKAGE}"):
            return True
        return self._path(module) is not None

    def _path(self, module: str) -> str | None:
        relative = module.removeprefix(PACKAGE).lstrip(".").replace(".", "/")
        for path in (f"{relative}.py", f"{relative}/__init__.py".lstrip("/")):
            if path != ".py" and self._tree.exists(path):
                return path
        return None

    def _defines(self, module: str, name: str) -> bool:
        if module not in self._names:
            self._names[module] = self._top_level(module)
        names = self._names[module]
        return names is None or name in names

    def _top_level(self, module: str) -> frozenset[str] | None:
        """The names that a module binds; None when it makes some at run time or takes all of another's."""
        path = self._path(module)
        if path is None and module not in self._added:
            return frozenset()
        try:
            text = self._tree.read(path).decode("utf-8") if path else self._added[module]
            table = symtable.symtable(text, module, "exec")
            source = ast.parse(text)
        except (SyntaxError, ValueError):
            return None
        names = frozenset(symbol.get_name() for symbol in table.get_symbols() if _binds(symbol))
        star = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(source))
        return None if star or "__getattr__" in names or "globals" in _loaded(source) else names


def undefined_names(content: str, base: str, name: str) -> tuple[str, ...]:
    """Names that the patched file uses and nothing defines, without those of its base; both must compile.

    A body that names a local variable which upstream renamed is found here, not at the first request.
    """
    return tuple(sorted(_undefined(content, name) - _undefined(base, name)))


def forget_names() -> None:
    """Drop what is kept of files that were looked at, so that a measurement begins from nothing."""
    _undefined.cache_clear()


@lru_cache(maxsize=24)
def _undefined(source: str, name: str) -> frozenset[str]:
    return frozenset(_undefined_in(source, name))


def _undefined_in(source: str, name: str) -> Iterator[str]:
    top = symtable.symtable(source, name, "exec")
    known = {symbol.get_name() for symbol in top.get_symbols() if _binds(symbol)} | _MODULE_NAMES | set(dir(builtins))
    known |= {
        symbol.get_name() for table in _tables(top) for symbol in table.get_symbols() if symbol.is_declared_global()
    }
    for table in _tables(top):
        for symbol in table.get_symbols():
            unbound = symbol.is_global() or (table is top and not _binds(symbol))
            if symbol.is_referenced() and unbound and symbol.get_name() not in known:
                yield symbol.get_name()


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _loaded(module: ast.Module) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(module) if isinstance(node, ast.Name))


def _ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")
