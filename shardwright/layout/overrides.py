"""Overrides from the environment and from `--set`, as documents that merge over a layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from shardwright.connect.strict_yaml import Document, Path, convert_scalar, load_yaml
from shardwright.errors import UsageError
from shardwright.layout.merge import merge_documents
from shardwright.layout.provenance import Origin

_MAX_DEPTH = 64

Converter = Callable[[str, str], Any]


class AppliedOverride(Struct, frozen=True):
    """One override that acted: who asked, which key changed, and the values before and after."""

    origin: Origin
    key: str
    before: Any
    after: Any
    note: str = ""

    def __str__(self) -> str:
        was = "unset" if self.before is None else _shown(self.before)
        return f"{self.origin}: {self.key} = {_shown(self.after)} (was {was}){self.note}"


def _scalar(name: str, text: str) -> Any:
    return convert_scalar(text)


def _verbatim(name: str, text: str) -> str:
    return text


def _switch(name: str, text: str) -> bool:
    if text in ("1", "true"):
        return True
    if text in ("0", "false"):
        return False
    raise UsageError(f"{name}={text!r} is neither 1 nor 0", fix=f"write {name}=1 or {name}=0")


def _json_map(name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not valid JSON: {error}", fix=f"""write {name}='{{"key": 1}}'""") from None
    if not isinstance(value, dict):
        raise UsageError(f"{name} must be a JSON object", fix=f"""write {name}='{{"key": 1}}'""")
    if _deeper_than(value, _MAX_DEPTH):
        raise UsageError(f"{name} is nested more than {_MAX_DEPTH} levels deep")
    _refuse_other_than_text(name, json.dumps(value, ensure_ascii=False))
    return value


def _deeper_than(value: Any, levels: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper_than(child, levels - 1) for child in children)


def _refuse_other_than_text(name: str, text: str) -> None:
    """Bytes that are not UTF-8 arrive from the environment as lone surrogates; no file or terminal takes them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} is not UTF-8 text: {text[:120]!r}") from None


class EnvRule(Struct, frozen=True):
    """How one environment variable maps to a layout key; `empty_acts` keeps an empty value meaningful."""

    variable: str
    path: Path
    convert: Converter = _scalar
    empty_acts: bool = False


ENV_RULES = (
    EnvRule("TP_SIZE", ("parallel", "tensor")),
    EnvRule("PP_SIZE", ("parallel", "pipeline")),
    EnvRule("PP_LAYER_PARTITION", ("parallel", "layer_partition"), _verbatim, empty_acts=True),
    EnvRule("MAX_MODEL_LEN", ("serve", "max_model_len")),
    EnvRule("KV_CACHE_DTYPE", ("serve", "kv_cache_dtype"), _verbatim),
    EnvRule("GPU_MEMORY_UTILIZATION", ("serve", "gpu_memory_utilization")),
    EnvRule("DISABLE_CUSTOM_ALL_REDUCE", ("serve", "disable_custom_all_reduce"), _switch),
    EnvRule("HF_OVERRIDES", ("serve", "hf_overrides"), _json_map),
    EnvRule("SPEC_METHOD", ("speculative", "method"), _verbatim, empty_acts=True),
    EnvRule("FORCE_V2_RUNNER", ("v2_runner",), _verbatim, empty_acts=True),
    EnvRule("AGENT_PROBE_TRIALS", ("probes", "degen", "trials")),
    EnvRule("IMAGE", ("engine", "image"), _verbatim),
    EnvRule("DEPLOY_DIGEST", ("engine", "digest"), _verbatim),
    EnvRule("DEPLOY_PYTHON", ("engine", "python"), _verbatim),
    EnvRule("DEPLOY_MODEL_PATH", ("model", "path"), _verbatim),
    EnvRule("DEPLOY_RUNTIME", ("runtime",), _verbatim),
    EnvRule("DEPLOY_WAIT_TIMEOUT", ("wait", "timeout_s")),
)


def apply_overrides(
    document: Document, environ: Mapping[str, str], sets: Sequence[str]
) -> tuple[Document, tuple[AppliedOverride, ...]]:
    """The layout with environment overrides, then `--set`, on top, and the list of those that acted."""
    applied: list[AppliedOverride] = []
    for rule in ENV_RULES:
        text = environ.get(rule.variable)
        if text is None or (text == "" and not rule.empty_acts):
            continue
        _refuse_other_than_text(rule.variable, text)
        value = rule.convert(rule.variable, text)
        change = _change(rule.path, value, Origin("env", rule.variable), text)
        document = _apply(document, change, rule.path, Origin("env", rule.variable), applied)
    document = _apply_port(document, environ, applied)
    document = _apply_hatch(document, environ, applied)
    for text in sets:
        _refuse_other_than_text("--set", text)
        path, change, origin = _parse_set(text)
        document = _apply(document, change, path, origin, applied)
    return document, tuple(applied)


def _apply(
    document: Document, change: Document, path: Path, origin: Origin, applied: list[AppliedOverride]
) -> Document:
    before, after = _look(document.data, path), _look(change.data, path)
    note = ""
    image = _look(document.data, ("engine", "image"))
    if image is not None and _look(change.data, ("engine", "image")) not in (None, image):
        # What a layout declares of its image is not true of another one.
        dropped = [key for key in ("digest", "provides", "package_root") if _look(document.data, ("engine", key))]
        for key in dropped:
            document = merge_documents(document, _change(("engine", key), None, origin, ""))
        if dropped:
            note = f"; dropped engine.{', engine.'.join(dropped)}, which the layout declared for its own image"
    parents = {path[:length]: origin for length in range(1, len(path))}
    document = merge_documents(document, change)
    document = Document(document.data, {**parents, **document.marks}, document.raw)
    applied.append(AppliedOverride(origin, ".".join(path), before, after, note))
    return document


def _apply_port(document: Document, environ: Mapping[str, str], applied: list[AppliedOverride]) -> Document:
    port = environ.get("PORT")
    if not port:
        return document
    if not (port.isascii() and port.isdigit()):
        raise UsageError(f"PORT={port!r} is not a port number", fix="write PORT=8000")
    path, origin = ("container", "publish"), Origin("env", "PORT")
    current = str(_look(document.data, path) or "127.0.0.1:8000:8000")
    parts = current.rsplit(":", 2)
    host, inner = (parts[0], parts[-1]) if len(parts) == 3 else ("127.0.0.1", parts[-1])
    text = f"{host}:{port}:{inner}"
    return _apply(document, _change(path, text, origin, text), path, origin, applied)


def _apply_hatch(document: Document, environ: Mapping[str, str], applied: list[AppliedOverride]) -> Document:
    text = environ.get("ALLOW_UNVERIFIED_PP")
    if not text or not _switch("ALLOW_UNVERIFIED_PP", text):
        return document
    origin = Origin("env", "ALLOW_UNVERIFIED_PP")
    allowed = _look(document.data, ("allow",)) or []
    if not isinstance(allowed, list) or "unverified-pp" in allowed:
        return document
    change = _change(("allow",), [*allowed, "unverified-pp"], origin, None)
    return _apply(document, change, ("allow",), origin, applied)


def _parse_set(text: str) -> tuple[Path, Document, Origin]:
    key, equals, value_text = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise UsageError(f"--set {text!r} is not KEY=VALUE", fix="write --set parallel.tensor=8")
    if len(path) > _MAX_DEPTH:
        raise UsageError(f"--set {key.strip()[:120]!r}: nested more than {_MAX_DEPTH} levels deep")
    origin = Origin("set", key.strip())
    value = load_yaml(value_text, f"--set {key.strip()}")
    if value_text == "":
        return path, _change(path, "", origin, ""), origin
    data: Any = value.data
    for part in reversed(path):
        data = {part: data}
    marks = {path + inner: origin for inner in value.marks}
    raw = {path + inner: text for inner, text in value.raw.items()}
    return path, Document(data, marks, raw), origin


def _change(path: Path, value: Any, origin: Origin, raw: str | None) -> Document:
    data: Any = value
    for part in reversed(path):
        data = {part: data}
    marks: dict[Path, object] = {}
    _mark(value, path, origin, marks)
    return Document(data, marks, {} if raw is None else {path: raw})


def _mark(value: Any, path: Path, origin: Origin, marks: dict[Path, object]) -> None:
    marks[path] = origin
    if isinstance(value, Mapping):
        for key, child in value.items():
            _mark(child, (*path, key), origin, marks)


def _look(data: Any, path: Path) -> Any:
    for part in path:
        if not isinstance(data, Mapping):
            return None
        data = data.get(part)
    return data


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value or '""'
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
