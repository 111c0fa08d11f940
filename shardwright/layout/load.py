"""Find a layout, follow `extends`, apply overrides, decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shardwright.connect.project import Project
from shardwright.connect.strict_yaml import Document, load_yaml
from shardwright.errors import UsageError
from shardwright.layout.merge import merge_documents
from shardwright.layout.overrides import AppliedOverride, apply_overrides
from shardwright.layout.provenance import Origin
from shardwright.layout.schema import Layout, decode_layout

_FOLDER = "configs/layouts"
_MAX_EXTENDS = 8


def load_layout(
    name: str | None, project: Project, environ: Mapping[str, str], sets: Sequence[str] = ()
) -> tuple[Layout, tuple[AppliedOverride, ...]]:
    """The decoded layout `name` (a name or a .yaml path; None means the default) and the overrides that acted."""
    file = find_layout(default_layout(project, environ) if name is None else name, project)
    document = _read_chain(file, project)
    document, applied = apply_overrides(document, environ, sets)
    return decode_layout(document, project.shown(file)), applied


def default_layout(project: Project, environ: Mapping[str, str]) -> str:
    """DEPLOY_LAYOUT, else `layout:` of configs/deploy.yaml."""
    if environ.get("DEPLOY_LAYOUT"):
        return environ["DEPLOY_LAYOUT"]
    file = project.find("configs/deploy.yaml")
    if file is None:
        raise UsageError("no layout named, and there is no configs/deploy.yaml", fix="deploy layouts")
    document = load_yaml(_read(file, project), project.shown(file))
    layout = document.data.get("layout") if isinstance(document.data, Mapping) else None
    if not isinstance(layout, str) or not layout:
        raise UsageError(f"{project.shown(file)}: the key 'layout' is missing", fix="write layout: NAME")
    return layout


def find_layout(name: str, project: Project) -> Path:
    """The file of a layout name or path; UsageError with the nearest names when there is none."""
    if not name.strip():
        raise UsageError(
            "the name of the layout is empty",
            why="it may be a shell variable that is not set; the default is taken only where no name is given",
            fix="deploy layouts",
        )
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        for candidate in (path, project.root / path):
            if candidate.is_file():
                return candidate.absolute()
        raise UsageError(f"there is no layout file {name}", fix="deploy layouts")
    found = project.find(f"{_FOLDER}/{name}.yaml") if "\x00" not in name and ".." not in name else None
    if found is None or not found.is_file():
        near = _nearest(name, project)
        hint = f"did you mean {near!r}? " if near else ""
        raise UsageError(f"there is no layout called {name!r}", fix=f"{hint}deploy layouts lists them")
    return found


def _nearest(name: str, project: Project) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(name, [layout for layout, _ in list_layouts(project)], n=1)
    return near[0] if near else None


def list_layouts(project: Project) -> tuple[tuple[str, Path], ...]:
    """Every layout by name, the project's own first, in alphabetical order."""
    found: dict[str, Path] = {}
    for base in reversed(project.search):
        for file in (base / _FOLDER).glob("*.yaml"):
            found[file.stem] = file
    return tuple(sorted(found.items()))


def _read(file: Path, project: Project) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{project.shown(file)} is not UTF-8 text", fix="save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{project.shown(file)} cannot be read: {error.strerror}") from None


def _read_chain(file: Path, project: Project) -> Document:
    chain: list[Document] = []
    seen: list[Path] = []
    current: Path | None = file
    while current is not None:
        if current in seen:
            names = " -> ".join(project.shown(path) for path in [*seen, current])
            raise UsageError(f"extends goes round in a circle: {names}")
        if len(seen) == _MAX_EXTENDS:
            raise UsageError(f"{project.shown(file)}: extends goes more than {_MAX_EXTENDS} files deep")
        seen.append(current)
        document = _with_origins(load_yaml(_read(current, project), project.shown(current)))
        if not isinstance(document.data, Mapping):
            raise UsageError(f"{project.shown(current)}:1: a layout is a map of keys")
        chain.append(document)
        current = _parent(document, project)
    merged = chain.pop()
    while chain:
        merged = merge_documents(merged, chain.pop())
    return merged


def _parent(document: Document, project: Project) -> Path | None:
    extends = document.data.get("extends")
    if extends is None:
        return None
    where = document.where(("extends",))
    if not isinstance(extends, str):
        raise UsageError(f"{where}: extends: expected the path of a layout below {_FOLDER}")
    found = project.find(f"{_FOLDER}/{extends}") if ".." not in extends else None
    if found is None or not found.is_file():
        near = _nearest(extends.removesuffix(".yaml"), project)
        raise UsageError(
            f"{where}: extends: there is no {_FOLDER}/{extends}",
            fix=f"did you mean {near}.yaml?" if near else f"name a file below {_FOLDER}",
        )
    return found


def _with_origins(document: Document) -> Document:
    marks = {path: Origin("layout", str(mark)) for path, mark in document.marks.items()}
    return Document(document.data, marks, document.raw)
