"""What a field's type annotation means for the command line, by the engine's own rules (engine/arg_utils.py)."""

from __future__ import annotations

import ast

from msgspec import Struct

from shardwright.facts.engine_names import Definition, SourceNames

_BUILTIN = frozenset({"bool", "str", "int", "float", "list", "tuple", "set", "dict", "None"})
_SIZES = frozenset(
    {
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "kv_cache_memory_bytes",
        "safetensors_prefetch_block_size",
        "max_num_queued_tokens",
    }
)


class Shape(Struct, frozen=True):
    """How a flag takes its value. `optional`: the word None is accepted too. `item`: the kind of a list's values."""

    kind: str = "text"
    choices: tuple[str, ...] = ()
    optional: bool = False
    item: str = ""


class _Hints:
    def __init__(self) -> None:
        self.atoms: set[str] = set()
        self.literals: list[object] = []
        self.items: set[str] = set()


def shape_of_field(names: SourceNames, found: Definition) -> Shape:
    """The shape of the flag that the engine makes of a config field (`_compute_kwargs`)."""
    node = found.node
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
        return Shape()
    hints = _Hints()
    _collect(names, found.file, node.annotation, hints, 0)
    atoms = hints.atoms
    optional = "None" in atoms
    if "dataclass" in atoms:
        return Shape("config", optional=optional)
    if atoms == {"bool", "str", "None"}:
        return Shape("optional")
    if "bool" in atoms:
        return Shape("bool")
    if hints.literals and not atoms & {"list", "tuple", "set"}:
        return _literal(hints, atoms, optional)
    if atoms & {"list", "tuple", "set"}:
        choices = _texts(hints.literals) if "str" not in atoms else ()
        return Shape("list", choices, optional, "int" if hints.items == {"int"} else "")
    return Shape(_scalar_kind(node.target.id, atoms), optional=optional)


def config_class(names: SourceNames, found: Definition) -> Definition | None:
    """The config class in a field's annotation; None where there is none, or several."""
    if not isinstance(found.node, ast.AnnAssign):
        return None
    words = [node.id for node in ast.walk(found.node.annotation) if isinstance(node, ast.Name)]
    places = [place for word in words if (place := names.lookup(found.file, word)) is not None]
    classes = [place for place in places if isinstance(place.node, ast.ClassDef)]
    return classes[0] if len(classes) == 1 else None


def _scalar_kind(field: str, atoms: set[str]) -> str:
    if "int" in atoms:
        return "size_or_auto" if field == "max_model_len" else "size" if field in _SIZES else "int"
    if "float" in atoms:
        return "float"
    if "dict" in atoms:
        return "json_or_text" if "str" in atoms or atoms - _BUILTIN else "json"
    return "text"


def _literal(hints: _Hints, atoms: set[str], optional: bool) -> Shape:
    whole = all(isinstance(value, int) for value in hints.literals)
    return Shape("int" if whole else "text", () if "str" in atoms else _texts(hints.literals), optional)


def _texts(values: list[object]) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values}))


def _collect(names: SourceNames, file: str, node: ast.expr, hints: _Hints, depth: int) -> None:
    if depth > 12:
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            _collect(names, file, ast.parse(node.value, mode="eval").body, hints, depth + 1)
        elif node.value is None:
            hints.atoms.add("None")
    elif isinstance(node, ast.BinOp):
        _collect(names, file, node.left, hints, depth + 1)
        _collect(names, file, node.right, hints, depth + 1)
    elif isinstance(node, ast.Subscript):
        _collect_subscript(names, file, node, hints, depth)
    elif isinstance(node, ast.Name):
        _collect_name(names, file, node.id, hints, depth)
    else:
        hints.atoms.add("other")


def _collect_subscript(names: SourceNames, file: str, node: ast.Subscript, hints: _Hints, depth: int) -> None:
    head = ast.unparse(node.value).rpartition(".")[2]
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if head == "Literal":
        for item in inner:
            if isinstance(item, ast.Constant):
                hints.literals.append(item.value)
            elif isinstance(item, ast.Name):
                _collect(names, file, item, hints, depth + 1)
    elif head in ("Optional", "Union"):
        if head == "Optional":
            hints.atoms.add("None")
        for item in inner:
            _collect(names, file, item, hints, depth + 1)
    elif head in ("Annotated", "SkipValidation", "ClassVar"):
        _collect(names, file, inner[0], hints, depth + 1)
    elif head in ("list", "tuple", "set", "List", "Tuple", "Set"):
        hints.atoms.add(head.lower())
        element = _Hints()
        _collect(names, file, inner[0], element, depth + 1)
        hints.literals += element.literals
        hints.items |= element.atoms
    elif head in ("dict", "Dict", "Mapping"):
        hints.atoms.add("dict")
    else:
        hints.atoms.add("other")


def _collect_name(names: SourceNames, file: str, name: str, hints: _Hints, depth: int) -> None:
    if name in _BUILTIN:
        hints.atoms.add(name)
        return
    found = names.lookup(file, name)
    if found is None:
        hints.atoms.add("other")
    elif isinstance(found.node, ast.ClassDef):
        decorators = {ast.unparse(item).partition("(")[0].rpartition(".")[2] for item in found.node.decorator_list}
        hints.atoms.add("dataclass" if decorators & {"config", "dataclass"} else "other")
    elif isinstance(found.node, ast.expr):
        _collect(names, found.file, found.node, hints, depth + 1)
