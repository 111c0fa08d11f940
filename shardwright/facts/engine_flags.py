"""The flags of `vllm serve` and the VLLM_* variables of one engine build, read from its sources with `ast`."""

from __future__ import annotations

import ast
import json
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from shardwright.errors import DeployError
from shardwright.facts.engine_hints import Shape, config_class, shape_of_field
from shardwright.facts.engine_names import Definition, Readable, SourceNames
from shardwright.facts.engine_tables import EngineTable, Flag

_ARG_UTILS = "engine/arg_utils.py"
_ENVS = "envs.py"
# The front end's flags moved twice between 0.28 and 0.33.
_FRONT_ENDS = (
    "entrypoints/common/cli_args.py",
    "entrypoints/launchers/cli_args.py",
    "entrypoints/openai/cli_args.py",
)
_BACKENDS = "v1/attention/backends/registry.py"
_TOOL_PARSERS = ("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER")
_REASONING_PARSERS = ("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER")
# The engine makes this config of a plain JSON object, later than it reads the command line.
_LATE_CONFIGS = {"--speculative-config": "SpeculativeConfig"}
_BOUNDS = {"ge": "low", "gt": "above", "le": "high", "lt": "below"}
_TYPES = {"int": "int", "float": "float", "str": "text", "json.loads": "json", "human_readable_int": "size"}


class _Source(Struct, frozen=True):
    """Where keyword arguments come from: all fields of a config class, or one of them."""

    cls: str
    field: str | None = None


def extract_engine_table(tree: Readable, version: str, source: str) -> EngineTable:
    """Flags, variables, attention backends and parsers of a tree (a wheel, an installed package, an image).

    Raises DeployError when the tree does not hold the files that define them.
    """
    names = SourceNames(tree)
    front = next((file for file in _FRONT_ENDS if names.module(file) is not None), None)
    if front is None or names.module(_ARG_UTILS) is None or names.module(_ENVS) is None:
        raise DeployError(
            f"{source} does not hold the flag definitions of vLLM {version}",
            why="without them no flag or variable can be checked for this build",
        )
    flags: dict[str, Flag] = {}
    for flag in (*_frontend_flags(names, front), *_added_flags(names, front), *_added_flags(names, _ARG_UTILS)):
        flags[flag.name] = flag
    return EngineTable(
        vllm=version,
        source=source,
        flags=tuple(flags[name] for name in sorted(flags)),
        envs=_environment_names(names),
        attention_backends=_backend_names(names),
        tool_parsers=_keys_of(names, *_TOOL_PARSERS),
        reasoning_parsers=_keys_of(names, *_REASONING_PARSERS),
    )


def _added_flags(names: SourceNames, file: str) -> list[Flag]:
    flags: list[Flag] = []
    for function in _functions(names, file):
        sources, changes = _keyword_sources(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                options = [item.value for item in node.args if isinstance(item, ast.Constant)]
                if options and all(isinstance(option, str) and option.startswith("-") for option in options):
                    flags.append(_flag(names, file, options, node.keywords, sources, changes))
    return flags


def _functions(names: SourceNames, file: str) -> list[ast.FunctionDef]:
    module = names.module(file)
    wanted = ("add_cli_args", "_add_cli_args", "make_arg_parser")
    return [
        node
        for node in (ast.walk(module) if module else ())
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]


def _keyword_sources(function: ast.FunctionDef) -> tuple[dict[str, _Source], dict[tuple[str, str], dict[str, Any]]]:
    """Which variables hold the keywords of which config class, and what is changed in them afterwards."""
    sources: dict[str, _Source] = {}
    changes: dict[tuple[str, str], dict[str, Any]] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name):
            found = _source_of(value, sources)
            if found is not None:
                sources[target.id] = found
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            held = _source_of(target.value, sources)
            if held is not None and held.field is not None:
                changes.setdefault((held.cls, held.field), {})[str(target.slice.value)] = value
    return sources, changes


def _source_of(node: ast.expr, sources: dict[str, _Source]) -> _Source | None:
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("get_kwargs") and len(node.args) == 1:
        return _Source(ast.unparse(node.args[0]))
    if isinstance(node, ast.Name):
        return sources.get(node.id)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = _source_of(node.value, sources)
        if base is not None and base.field is None:
            return _Source(base.cls, str(node.slice.value))
    return None


def _flag(
    names: SourceNames,
    file: str,
    options: list[Any],
    keywords: list[ast.keyword],
    sources: dict[str, _Source],
    changes: dict[tuple[str, str], dict[str, Any]],
) -> Flag:
    extra: dict[str, Any] = {}
    source: _Source | None = None
    for keyword in keywords:
        if keyword.arg is not None:
            extra[keyword.arg] = keyword.value
            continue
        for part in ast.walk(keyword.value):
            if isinstance(part, ast.Name | ast.Subscript) and source is None:
                found = _source_of(part, sources)
                source = found if found is not None and found.field is not None else None
        if isinstance(keyword.value, ast.Dict):
            pairs = zip(keyword.value.keys, keyword.value.values, strict=True)
            extra |= {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    name = next(option for option in options if option.startswith("--"))
    others = tuple(option for option in options if option != name)
    field: Definition | None = None
    if source is not None and source.field is not None:
        field = names.fields(file, source.cls).get(source.field)
        extra = {**changes.get((source.cls, source.field), {}), **extra}
    shape = shape_of_field(names, field) if field is not None else Shape("text" if source else "str")
    return _finish(names, file, Flag(name=name, aliases=others), shape, field, extra)


def _finish(
    names: SourceNames, file: str, flag: Flag, shape: Shape, field: Definition | None, extra: dict[str, Any]
) -> Flag:
    shape = _overridden(names, file, shape, extra)
    folds = isinstance(extra.get("type"), ast.Lambda) and ".lower()" in ast.unparse(extra["type"])
    if isinstance(extra.get("type"), ast.Lambda) and not folds:
        shape = Shape("text")
    default = extra.get("default")
    if default is None and field is not None and isinstance(field.node, ast.AnnAssign):
        default, file = field.node.value, field.file
    return replace(
        flag,
        kind=shape.kind,
        choices=shape.choices,
        optional=shape.optional,
        item=shape.item,
        folds=folds,
        default=_default_text(names, file, default, 0),
        deprecated="deprecat" in " ".join(ast.unparse(extra[key]) for key in ("help", "action") if key in extra).lower()
        or "deprecated" in extra,
        keys=_config_keys(names, flag.name, shape, field),
        **_bounds(field),
    )


def _bounds(field: Definition | None) -> dict[str, float]:
    """What a field's `Field(ge=…, gt=…, le=…, lt=…)` demands of its value."""
    node = field.node.value if field is not None and isinstance(field.node, ast.AnnAssign) else None
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("Field"):
        return {}
    given = {_BOUNDS[word.arg]: word.value for word in node.keywords if word.arg in _BOUNDS}
    try:
        return {name: float(ast.literal_eval(value)) for name, value in given.items()}
    except (ValueError, TypeError):
        return {}


def _config_keys(names: SourceNames, flag: str, shape: Shape, field: Definition | None) -> tuple[str, ...]:
    """The fields of the config class that a JSON flag fills; such classes take no others."""
    if flag in _LATE_CONFIGS:
        found = names.fields("config/speculative.py", _LATE_CONFIGS[flag])
    elif shape.kind == "config" and field is not None:
        place = config_class(names, field)
        found = names.fields(place.file, place.node.name) if place and isinstance(place.node, ast.ClassDef) else {}
    else:
        return ()
    return tuple(sorted(key for key in found if not key.startswith("_")))


def _overridden(names: SourceNames, file: str, shape: Shape, extra: dict[str, Any]) -> Shape:
    kind, optional = shape.kind, shape.optional
    if "type" in extra:
        text, optional = ast.unparse(extra["type"]), False
        if text.startswith("optional_type(") and text.endswith(")"):
            text, optional = text.removeprefix("optional_type(")[:-1], True
        kind = _TYPES.get(text, kind if kind != "str" else "text")
    action = ast.unparse(extra["action"]).strip("'\"") if "action" in extra else ""
    if action.endswith("BooleanOptionalAction"):
        return Shape("bool")
    if action == "store_true":
        return Shape("switch")
    if action == "append":
        return Shape("append")
    if action == "LoRAParserAction":
        return Shape("list", optional=True)
    if kind == "list" and extra.get("nargs", "") is None:
        kind = _TYPES.get(ast.unparse(extra["type"]), "text") if "type" in extra else "text"
    choices = shape.choices
    if "choices" in extra:
        choices = _choice_texts(names, file, extra["choices"])
    return Shape("text" if kind == "str" else kind, choices, optional, shape.item if kind == "list" else "")


def _choice_texts(names: SourceNames, file: str, node: ast.expr) -> tuple[str, ...]:
    """Choices written as a list; `get_args(X)` reads the Literal X, and what depends on the platform gives none."""
    if (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("get_args")
        and isinstance(node.args[0], ast.Name)
    ):
        annotation = ast.AnnAssign(target=ast.Name("x"), annotation=node.args[0], value=None, simple=1)
        return shape_of_field(names, Definition(file, annotation)).choices
    try:
        return tuple(sorted(str(item) for item in ast.literal_eval(node)))
    except (ValueError, TypeError):
        return ()


def _frontend_flags(names: SourceNames, front: str) -> list[Flag]:
    """Every field of FrontendArgs is a flag, changed by the assignments of its `_customize_cli_kwargs`."""
    changes, dropped = _frontend_changes(names, front)
    flags = []
    for field, found in names.fields(front, "FrontendArgs").items():
        if field not in dropped:
            flag = Flag(name="--" + field.replace("_", "-"))
            flags.append(_finish(names, front, flag, shape_of_field(names, found), found, changes.get(field, {})))
    return flags


def _frontend_changes(names: SourceNames, front: str) -> tuple[dict[str, dict[str, Any]], set[str]]:
    changes: dict[str, dict[str, Any]] = {}
    dropped: set[str] = set()
    module = names.module(front)
    for function in ast.walk(module) if module else ():
        if not isinstance(function, ast.FunctionDef) or function.name not in ("_customize_cli_kwargs", "add_cli_args"):
            continue
        for node in ast.walk(function):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
            for target in targets:
                path = _subscripts(target)
                if len(path) == 1 and isinstance(node, ast.Delete):
                    dropped.add(path[0])
                elif len(path) == 2:
                    changes.setdefault(path[0], {})[path[1]] = node.value if isinstance(node, ast.Assign) else None
    return changes, dropped


def _subscripts(node: ast.expr) -> tuple[str, ...]:
    """`frontend_kwargs["a"]["b"]` as ("a", "b")."""
    parts: list[str] = []
    while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        parts.insert(0, str(node.slice.value))
        node = node.value
    return tuple(parts) if isinstance(node, ast.Name) and node.id == "frontend_kwargs" else ()


def _default_text(names: SourceNames, file: str, node: ast.expr | None, depth: int) -> str | None:
    """A default as JSON where the sources state it; None where it is made at run time."""
    if node is None or depth > 8:
        return None
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("Field", "field"):
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        return _default_text(names, file, given.get("default", node.args[0] if node.args else None), depth + 1)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = names.fields(file, node.value.id).get(node.attr)
        value = found.node.value if found and isinstance(found.node, ast.AnnAssign) else None
        return _default_text(names, found.file, value, depth + 1) if found else None
    if isinstance(node, ast.Name):
        known = names.lookup(file, node.id)
        value = known.node if known and isinstance(known.node, ast.expr) else None
        return _default_text(names, known.file, value, depth + 1) if known else None
    try:
        return json.dumps(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError):
        return None


def _environment_names(names: SourceNames) -> tuple[str, ...]:
    module = names.module(_ENVS)
    found: set[str] = set()
    for node in module.body if module else ():
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "environment_variables" and isinstance(value, ast.Dict):
            found |= {str(key.value) for key in value.keys if isinstance(key, ast.Constant)}
    return tuple(sorted(found))


def _backend_names(names: SourceNames) -> tuple[str, ...]:
    found = names.lookup(_BACKENDS, "AttentionBackendEnum")
    if found is None or not isinstance(found.node, ast.ClassDef):
        return ()
    return tuple(
        sorted(
            statement.targets[0].id
            for statement in found.node.body
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        )
    )


def _keys_of(names: SourceNames, file: str, name: str) -> tuple[str, ...]:
    """The keys of a dictionary that a module assigns to a name; empty where there is none."""
    module = names.module(file)
    for node in module.body if module else ():
        if isinstance(node, ast.Assign) and name in [
            target.id for target in node.targets if isinstance(target, ast.Name)
        ]:
            keys = node.value.keys if isinstance(node.value, ast.Dict) else ()
            return tuple(sorted(str(key.value) for key in keys if isinstance(key, ast.Constant)))
    return ()
