"""Which functions a model really runs through on a platform: followed by `ast` from the engine's own model registry.

An edit that applies to a function that no served model calls is applied and not in effect. From vLLM 0.30 on, for
example, GLM on CUDA is served by classes that inherit the generic causal model and replace its body, so one class of
the generic file runs and its neighbours do not. That is a matter of single symbols, not of files.

What is followed: the classes that a model's class constructs, their methods as they are inherited, `super()`, class
attributes that name a class, and functions that are called. A method of a constructed class counts as run. Names count
as run also where they are only mentioned, so "not reached" is certain within the model code, "reached" is likely.
Before "not reached" is said, the modules outside of the model code that the model mentions are followed too: an
attention backend, for example, hands back a class of the model code as its metadata builder.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwright.connect.trees import SourceTree
from shardwright.overlay.edits import ADDITIVE_PACKAGE, Edit
from shardwright.overlay.modules import Definition, Found, Modules, Shared, import_bindings

REGISTRY = "model_executor/models/registry.py"
MODEL_CODE = ("vllm.models", "vllm.model_executor.models")
"""Where a verdict "not reached" is certain; elsewhere code is called in ways that are not followed."""


@dataclass(frozen=True)
class Served:
    """The class that serves one registry name on a platform, and the line of the registry that says so."""

    architecture: str
    module: str
    name: str
    line: int


@dataclass(frozen=True)
class Closure:
    """What one model runs: `symbols` are `module:qualified.name`, `modules` the files that it loads.

    `outside` are the modules of names that were met and not followed.
    """

    served: Served
    symbols: frozenset[str]
    modules: frozenset[str]
    outside: frozenset[str]


class Reacher:
    """Answers for one engine tree; parsed files are shared between models and platforms."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self._shared = Shared()
        self._registry: dict[str, tuple[str, str, int]] | None = None
        self._closures: dict[tuple[str, str, tuple[str, ...]], Closure | None] = {}

    def closure(self, architecture: str, platform: str, also: Sequence[str] = ()) -> Closure | None:
        """What `architecture` runs on `platform`; None when the registry has no such name.

        `also` names modules outside of the model code that are followed too.
        """
        key = (architecture, platform, tuple(sorted(set(also))))
        if key not in self._closures:
            self._closures[key] = self._follow(architecture, platform, key[2])
        return self._closures[key]

    def reached(self, edit: Edit, architectures: Sequence[str], platform: str) -> bool | None:
        """Whether one of the models runs through the edit's symbol; None where that is not known."""
        module = edit.module.removesuffix(".__init__")
        if module.startswith(f"vllm.{ADDITIVE_PACKAGE}."):
            return None
        also = () if _in_model_code(module) else (module,)
        near = [self.closure(name, platform, also) for name in architectures]
        if not near or None in near:
            return None
        wanted = f"{module}:{edit.symbol}" if edit.symbol else ""

        def runs(closure: Closure | None) -> bool:
            return closure is not None and (wanted in closure.symbols if wanted else module in closure.modules)

        if any(map(runs, near)):
            return True
        if not _in_model_code(module):
            return None
        return any(runs(self._with_outside(name, platform)) for name in architectures)

    def _with_outside(self, architecture: str, platform: str) -> Closure | None:
        """The closure through the modules outside of the model code that it mentions, and no further."""
        near = self.closure(architecture, platform)
        outside = near.outside if near else ()
        return self.closure(architecture, platform, [name for name in outside if not _holds_model_code(name)])

    def _follow(self, architecture: str, platform: str, also: tuple[str, ...]) -> Closure | None:
        entry = self._entries().get(architecture)
        if entry is None:
            return None
        modules = Modules(self.tree, platform, (*MODEL_CODE, *also), self._shared)
        found = modules.imported(entry[0], entry[1])
        if found is None or not isinstance(found.node, ast.ClassDef):
            return None
        walk = _Walk(modules)
        walk.construct(found)
        walk.run()
        served = Served(architecture, found.module, found.name, entry[2])
        return Closure(served, frozenset(walk.symbols), frozenset(walk.modules), frozenset(walk.outside))

    def _entries(self) -> dict[str, tuple[str, str, int]]:
        """Registry name to (module, class, line)."""
        if self._registry is None:
            self._registry = {}
            for key, value in _registry_items(ast.parse(self.tree.read(REGISTRY))):
                module, name = value
                full = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
                self._registry.setdefault(str(key.value), (full, name, key.lineno))
        return self._registry


def _in_model_code(module: str) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in MODEL_CODE)


def _holds_model_code(module: str) -> bool:
    return any(prefix.startswith(f"{module}.") for prefix in MODEL_CODE)


def _registry_items(module: ast.Module) -> Iterator[tuple[ast.Constant, tuple[str, str]]]:
    for node in ast.walk(module):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Tuple):
                words = [item.value for item in value.elts if isinstance(item, ast.Constant)]
                if len(words) == 2 and all(isinstance(word, str) for word in words):
                    yield key, (str(words[0]), str(words[1]))


@dataclass(frozen=True)
class _Visit:
    """One function to read. `owner`: the constructed class whose `self` it sees, `place`: the class that defines it."""

    module: str
    qualname: str
    node: Definition
    owner: Found | None = None
    place: Found | None = None


class _Walk:
    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self.symbols: set[str] = set()
        self.modules: set[str] = set()
        self.outside: set[str] = set()
        self._constructed: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._queue: list[_Visit] = []
        self._orders: dict[str, tuple[Found, ...]] = {}

    def run(self) -> None:
        while self._queue:
            visit = self._queue.pop()
            self.symbols.add(f"{visit.module}:{visit.qualname}")
            self.modules.add(visit.module)
            self._read(visit)

    def construct(self, found: Found) -> None:
        """A class that is constructed: every method that its order of inheritance shows is run."""
        if found.key in self._constructed:
            return
        self._constructed.add(found.key)
        self.symbols.add(found.key)
        self.modules.add(found.module)
        shown: set[str] = set()
        for place in self._order(found):
            self.symbols.add(place.key)
            self.modules.add(place.module)
            for name, node in self._methods(place).items():
                if name not in shown:
                    shown.add(name)
                    self._visit(found, place, name, node)

    def _visit(self, owner: Found, place: Found, name: str, node: Definition) -> None:
        mark = (owner.key, f"{place.key}.{name}")
        if mark not in self._seen:
            self._seen.add(mark)
            self._queue.append(_Visit(place.module, f"{place.name}.{name}", node, owner, place))

    def _call(self, found: Found | None) -> None:
        if found is None or not found.name:
            return
        if found.node is None:
            self.symbols.add(found.key)
            self.outside.add(found.module)
        elif isinstance(found.node, ast.ClassDef):
            self.construct(found)
        elif ("", found.key) not in self._seen:
            self._seen.add(("", found.key))
            self._queue.append(_Visit(found.module, found.name, found.node))

    def _order(self, found: Found) -> tuple[Found, ...]:
        """The class and its bases, nearest first; a base that is not followed ends its branch."""
        if found.key not in self._orders:
            self._orders[found.key] = (found,)
            order: dict[str, Found] = {}
            if isinstance(found.node, ast.ClassDef):
                for base in found.node.bases:
                    resolved = self._named(found.module, base, {})
                    for ancestor in self._order(resolved) if resolved and resolved.name else ():
                        # A base that several branches share comes after the last of them.
                        order.pop(ancestor.key, None)
                        order[ancestor.key] = ancestor
            self._orders[found.key] = (found, *order.values())
        return self._orders[found.key]

    def _methods(self, found: Found) -> dict[str, Definition]:
        if not isinstance(found.node, ast.ClassDef):
            return {}
        statements = self._modules.live_statements(found.node.body)
        return {node.name: node for node in statements if isinstance(node, Definition)}

    def _class_attribute(self, owner: Found, name: str) -> Found | None:
        for place in self._order(owner):
            body = place.node.body if isinstance(place.node, ast.ClassDef) else []
            for statement in self._modules.live_statements(body):
                if isinstance(statement, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == name for target in statement.targets
                ):
                    return self._named(place.module, statement.value, {})
        return None

    def _named(self, module: str, node: ast.expr, local: dict[str, tuple[str, str]]) -> Found | None:
        if isinstance(node, ast.Name):
            if node.id in local:
                return self._modules.imported(*local[node.id])
            return self._modules.resolve(module, node.id) if self._modules.module(module) else None
        if isinstance(node, ast.Attribute):
            base = self._named(module, node.value, local)
            if base is not None and not base.name:
                return self._modules.imported(base.module, node.attr)
        return None

    def _read(self, visit: _Visit) -> None:
        found = self._modules.references(visit.node)
        known = self._modules.module(visit.module)
        local: dict[str, tuple[str, str]] = {}
        for statement in found.imports:
            local.update(import_bindings(statement, visit.module, known.is_package if known else False))
        self.symbols.update(f"{visit.module}:{visit.qualname}.{name}" for name in found.inner)
        for name in found.names:
            self._call(self._named(visit.module, name, local))
        for attribute in found.attributes:
            self._attribute(visit, attribute, local)

    def _attribute(self, visit: _Visit, node: ast.Attribute, local: dict[str, tuple[str, str]]) -> None:
        if visit.owner is None or visit.place is None:
            self._call(self._named(visit.module, node, local))
        elif isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            self._call(self._class_attribute(visit.owner, node.attr))
        elif _is_super(node.value):
            order = self._order(visit.owner)
            for place in order[order.index(visit.place) + 1 :] if visit.place in order else ():
                if node.attr in self._methods(place):
                    self._visit(visit.owner, place, node.attr, self._methods(place)[node.attr])
                    return
        else:
            self._call(self._named(visit.module, node, local))


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
