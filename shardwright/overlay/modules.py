"""One engine's modules as names to follow: what a name means on a platform, read from the source alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardwright.connect.trees import PACKAGE, SourceTree

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_PLATFORM_OBJECT = "current_platform"


@dataclass(frozen=True)
class Found:
    """What a name stands for. `node` is None for a module, and for a name of a module that is not followed."""

    module: str
    name: str
    node: Definition | None

    @property
    def key(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass
class Module:
    """One file, its top-level names as they are bound on one platform: definitions, imports, plain assignments."""

    name: str
    is_package: bool
    definitions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name to (module, name there); an empty name stands for the module itself."""
    assigned: dict[str, ast.expr] = field(default_factory=dict)


@dataclass(frozen=True)
class References:
    """What a function mentions: one node for each name that it reads, attributes, imports, and inner definitions."""

    names: tuple[ast.Name, ...]
    attributes: tuple[ast.Attribute, ...]
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    inner: tuple[str, ...]


@dataclass
class Shared:
    """What the platforms of one tree have in common: parsed files, and the references of functions."""

    parsed: dict[str, ast.Module] = field(default_factory=dict)
    references: dict[tuple[int, str], References] = field(default_factory=dict)
    """By node and platform; "" where the function asks no platform test."""


class Modules:
    """The modules of one tree on one platform (cuda, rocm or cpu), each parsed once. `followed`: name prefixes."""

    def __init__(self, tree: SourceTree, platform: str, followed: Sequence[str], shared: Shared) -> None:
        self._tree = tree
        self._platform = platform
        self._followed = tuple(followed)
        self._shared = shared
        self._parsed = shared.parsed
        self._modules: dict[str, Module | None] = {}

    def follows(self, name: str) -> bool:
        return any(name == prefix or name.startswith(f"{prefix}.") for prefix in self._followed)

    def module(self, name: str) -> Module | None:
        """The module called `name`; None when it is not followed, not there, or does not parse."""
        if name not in self._modules:
            self._modules[name] = self._read(name) if self.follows(name) else None
        return self._modules[name]

    def resolve(self, module: str, name: str, depth: int = 0) -> Found | None:
        """What `name` means inside `module`; None for builtins, other packages, and what is computed."""
        here = self.module(module)
        if here is None:
            return Found(module, name, None)
        if name in here.definitions:
            return Found(module, name, here.definitions[name])
        if name in here.imports and depth < 16:
            source, attribute = here.imports[name]
            return self.imported(source, attribute, depth + 1)
        value = here.assigned.get(name)
        if isinstance(value, ast.Name) and value.id != name and depth < 16:
            return self.resolve(module, value.id, depth + 1)
        return None

    def imported(self, module: str, name: str, depth: int = 0) -> Found | None:
        """What `from module import name` gives; "" for the module itself."""
        if module != PACKAGE and not module.startswith(f"{PACKAGE}."):
            return None
        if not name:
            return Found(module, "", None)
        known = self.module(module)
        if known is not None and not (name in known.definitions or name in known.imports or name in known.assigned):
            return Found(f"{module}.{name}", "", None)
        return self.resolve(module, name, depth)

    def references(self, function: Definition) -> References:
        """What may run of a function on this platform: no annotations, no second argument of isinstance."""
        cache = self._shared.references
        found = cache.get((id(function), "")) or cache.get((id(function), self._platform))
        if found is None:
            found, asks_platform = self._collect(function)
            cache[id(function), self._platform if asks_platform else ""] = found
        return found

    def _collect(self, function: Definition) -> tuple[References, bool]:
        names: dict[str, ast.Name] = {}
        attributes: list[ast.Attribute] = []
        imports: list[ast.Import | ast.ImportFrom] = []
        inner: list[str] = []
        asks_platform = False
        stack: list[ast.AST] = [function]
        while stack:
            node = stack.pop()
            skipped: tuple[str, ...] = ("annotation", "returns")
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    names.setdefault(node.id, node)
                continue
            if isinstance(node, ast.Constant):
                continue
            if isinstance(node, ast.Attribute):
                attributes.append(node)
            elif isinstance(node, ast.If):
                decided = self.decide(node.test)
                asks_platform = asks_platform or decided is not None
                skipped = {True: ("orelse",), False: ("body",), None: ()}[decided]
            elif isinstance(node, ast.Import | ast.ImportFrom):
                imports.append(node)
            elif isinstance(node, Definition) and node is not function:
                inner.append(node.name)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                stack.extend(node.args[:1])
                continue
            for name in node._fields:
                if name not in skipped:
                    value = getattr(node, name, None)
                    if isinstance(value, list):
                        stack.extend(child for child in value if isinstance(child, ast.AST))
                    elif isinstance(value, ast.AST):
                        stack.append(value)
        return References(tuple(names.values()), tuple(attributes), tuple(imports), tuple(inner)), asks_platform

    def live_statements(self, statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements that run on this platform, with the branches of `if` and `try` opened."""
        for statement in statements:
            if isinstance(statement, ast.If):
                decided = self.decide(statement.test)
                if decided is not False:
                    yield from self.live_statements(statement.body)
                if decided is not True:
                    yield from self.live_statements(statement.orelse)
            elif isinstance(statement, ast.Try):
                for block in (statement.body, statement.orelse, statement.finalbody):
                    yield from self.live_statements(block)
                for handler in statement.handlers:
                    yield from self.live_statements(handler.body)
            else:
                yield statement

    def decide(self, test: ast.expr) -> bool | None:
        """The truth of a platform test such as `current_platform.is_cuda()`; None for any other test."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decide(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            values = [self.decide(value) for value in test.values]
            decisive = isinstance(test.op, ast.Or)
            if decisive in values:
                return decisive
            return None if None in values else not decisive
        if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
            return False
        match test:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=question)) if name == _PLATFORM_OBJECT:
                return {
                    "is_cuda": self._platform == "cuda",
                    "is_rocm": self._platform == "rocm",
                    "is_cpu": self._platform == "cpu",
                    "is_cuda_alike": self._platform in ("cuda", "rocm"),
                    "is_xpu": False,
                    "is_tpu": False,
                }.get(question)
        return None

    def _read(self, name: str) -> Module | None:
        relative = name.removeprefix(PACKAGE).lstrip(".").replace(".", "/")
        for path, is_package in ((f"{relative}.py", False), (f"{relative}/__init__.py".lstrip("/"), True)):
            try:
                if path not in self._parsed:
                    self._parsed[path] = ast.parse(self._tree.read(path))
            except FileNotFoundError:
                continue
            except (SyntaxError, ValueError):
                return None
            module = Module(name, is_package)
            for statement in self.live_statements(self._parsed[path].body):
                _bind(module, statement)
            return module
        return None


def import_bindings(
    statement: ast.Import | ast.ImportFrom, module: str, is_package: bool
) -> dict[str, tuple[str, str]]:
    """The local names of one import statement inside `module`."""
    if isinstance(statement, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: (
                alias.name if alias.asname else alias.name.partition(".")[0],
                "",
            )
            for alias in statement.names
        }
    source = statement.module or ""
    if statement.level:
        parts = module.split(".")
        drop = statement.level - (1 if is_package else 0)
        source = ".".join([*parts[: len(parts) - drop], *([source] if source else [])])
    return {alias.asname or alias.name: (source, alias.name) for alias in statement.names if alias.name != "*"}


def _bind(module: Module, statement: ast.stmt) -> None:
    if isinstance(statement, Definition):
        module.definitions[statement.name] = statement
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        module.imports.update(import_bindings(statement, module.name, module.is_package))
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                module.assigned[target.id] = statement.value
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        module.assigned[statement.target.id] = statement.value
