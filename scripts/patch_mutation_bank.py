#!/usr/bin/env python3
"""Carry random edits over upstream changes, and over damage made on purpose, and count where each method puts them.

    scripts/patch_mutation_bank.py --wheels 0.28.0 0.30.0 0.32.0 0.33.0    real differences between releases
    scripts/patch_mutation_bank.py                                         damage to this Python's own library files

Methods: the edits of this project, `git apply`, `patch` as it comes, and a text replacement that nobody checks. An
edit is right in the function that it was made for, or refused; wrong in another one, broken when the file no longer
compiles, twice when it was there already, silent when nothing happened and nothing was said.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from shardwright.connect.project import open_project  # noqa: E402
from shardwright.connect.trees import WheelTree  # noqa: E402
from shardwright.connect.wheels import wheel_file  # noqa: E402
from shardwright.overlay.compose import compose  # noqa: E402
from shardwright.overlay.edits import Edit, EditSpec, Place  # noqa: E402
from shardwright.overlay.importer import Change, edit_for  # noqa: E402
from shardwright.overlay.patch import Patch, PlanEffects, Reach, Upstream  # noqa: E402
from shardwright.overlay.source import Source, parse_source  # noqa: E402

HOT_FILES = (
    "model_executor/models/deepseek_v2.py",
    "models/deepseek_v32/attention.py",
    "models/deepseek_v32/nvidia/model.py",
    "models/deepseek_v32/amd/model.py",
    "v1/worker/cpu_model_runner.py",
    "v1/worker/gpu_worker.py",
    "v1/core/sched/scheduler.py",
    "v1/core/kv_cache_utils.py",
    "config/parallel.py",
    "model_executor/layers/quantization/mxfp4.py",
    "model_executor/layers/vocab_parallel_embedding.py",
    "distributed/utils.py",
)
LIBRARY_FILES = (
    "textwrap.py",
    "shlex.py",
    "calendar.py",
    "cmd.py",
    "queue.py",
    "sched.py",
    "netrc.py",
    "plistlib.py",
    "gettext.py",
    "tempfile.py",
    "mimetypes.py",
    "filecmp.py",
    "pprint.py",
)
OUTCOMES = ("right", "refused", "wrong", "broken", "twice", "silent")
HARMFUL = ("wrong", "broken", "twice", "silent")
DAMAGES = ("anchor deleted", "anchor duplicated", "symbol renamed", "moved to another file", "applied before", "twin")
_VERSION = "0.30.0"


@dataclass(frozen=True)
class Insertion:
    """One statement put after a line of a function. `text` is the file with it, `line` the anchor's index from 0."""

    base: Source
    edit: Edit
    marker: str
    line: int
    text: str

    @property
    def base_text(self) -> str:
        return "\n".join([*self.base.lines, ""])


@dataclass(frozen=True)
class Outcome:
    kind: str
    said: str = ""


@dataclass
class _Tree:
    files: Mapping[str, bytes]
    vllm_version: str = _VERSION
    identity: str = "bank"
    root: str = "/bank/vllm"
    reads: list[str] = field(default_factory=list)

    def read(self, relative: str) -> bytes:
        if relative not in self.files:
            raise FileNotFoundError(relative)
        return self.files[relative]

    def exists(self, relative: str) -> bool:
        return relative in self.files


def insertions(relative: str, data: bytes, count: int, draw: random.Random) -> Iterator[Insertion]:
    """Up to `count` insertions into functions of a file, each after a statement of one line."""
    source = parse_source(data)
    places = [
        statement
        for function in ast.walk(source.tree)
        if isinstance(function, ast.FunctionDef)
        for statement in function.body
        if isinstance(statement, ast.Assign | ast.Expr | ast.AugAssign) and statement.lineno == statement.end_lineno
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]
    draw.shuffle(places)
    made = 0
    for number, statement in enumerate(places):
        if made == count:
            return
        marker = f"bank_marker_{number}_{statement.lineno}"
        line = f"{' ' * statement.col_offset}{marker} = {number}"
        change = Change(relative, statement.lineno, statement.lineno, (line,))
        edit = edit_for(change, source, "edit")
        if edit is not None and edit.symbol and len(source.symbols[edit.symbol]) == 1:
            lines = [*source.lines[: statement.lineno], line, *source.lines[statement.lineno :], ""]
            made += 1
            yield Insertion(source, edit, marker, statement.lineno - 1, "\n".join(lines))


def by_edit(insertion: Insertion, target: Mapping[str, str]) -> Outcome:
    """The method of this project."""
    tree = _Tree({name: text.encode() for name, text in target.items()})
    composition = compose([_patch(insertion.edit)], tree)
    if composition.problems:
        (problem,) = composition.problems
        return Outcome("refused", problem.verdict.value)
    (file,) = composition.files
    return _judge(insertion, file.content.decode())


def by_git_apply(insertion: Insertion, target: Mapping[str, str]) -> Outcome:
    return _by_tool(insertion, target, ["git", "apply", "edit.diff"])


def by_patch(insertion: Insertion, target: Mapping[str, str]) -> Outcome:
    return _by_tool(insertion, target, ["patch", "-p1", "--batch", "--silent", "--input", "edit.diff"])


def by_replacement(insertion: Insertion, target: Mapping[str, str]) -> Outcome:
    """The first place where the anchor's line stands, unchecked: how scripts at container start do it."""
    anchor = insertion.base.lines[insertion.line] + "\n"
    added = insertion.text.split("\n")[insertion.line + 1] + "\n"
    text = target.get(insertion.edit.relative, "")
    return _judge(insertion, text.replace(anchor, anchor + added, 1))


Method = Callable[[Insertion, Mapping[str, str]], Outcome]

METHODS: dict[str, Method] = {
    "this project": by_edit,
    "git apply": by_git_apply,
    "patch": by_patch,
    "unchecked replace": by_replacement,
}


def damaged(insertion: Insertion, damage: str) -> dict[str, str] | None:
    """The base file with one kind of damage; None where the file would not compile with it."""
    lines, index, name = list(insertion.base.lines), insertion.line, insertion.edit.symbol
    relative = insertion.edit.relative
    start, end = insertion.base.spans(name)[0]
    if damage == "anchor deleted":
        lines[index] = f"{_indent(lines[index])}pass"
    elif damage == "anchor duplicated":
        lines[index:index] = insertion.base.lines[index : index + 1] * 1
        if len(insertion.edit.find.splitlines()) > 1:
            return None
    elif damage == "symbol renamed":
        last = name.rpartition(".")[2]
        header = next((row for row in range(start, end) if f"def {last}(" in lines[row]), None)
        if header is None:
            return None
        lines[header] = lines[header].replace(f"def {last}(", f"def {last}_v2(", 1)
    elif damage == "moved to another file":
        return {relative.replace(".py", "_moved.py"): insertion.base_text}
    elif damage == "applied before":
        return {relative: insertion.text}
    else:
        last = name.rpartition(".")[2]
        twin = [line.replace(f"def {last}(", f"def {last}_twin(") for line in lines[start:end]]
        lines[index] = f"{_indent(lines[index])}pass"
        lines[start:start] = [*twin, ""]
    text = "\n".join([*lines, ""])
    return {relative: text} if _compiles(text) else None


def synthetic(
    per_file: int, seed: int = 7, methods: Mapping[str, Method] | None = None
) -> dict[str, dict[str, Counter[str]]]:
    """Damage to method to outcomes, on library files of this Python; all methods unless some are named."""
    methods = methods or METHODS
    draw = random.Random(seed)
    library = Path(sysconfig.get_path("stdlib"))
    found: dict[str, dict[str, Counter[str]]] = {damage: {name: Counter() for name in methods} for damage in DAMAGES}
    for file in LIBRARY_FILES:
        path = library / file if (library / file).is_file() else library / file.removesuffix(".py") / "__init__.py"
        for insertion in insertions(file, path.read_bytes(), per_file, draw):
            for damage in DAMAGES:
                target = damaged(insertion, damage)
                for name, method in methods.items() if target is not None else ():
                    found[damage][name][method(insertion, target).kind] += 1
    return found


def carried(wheels: Sequence[str], per_file: int, seed: int = 7) -> dict[str, dict[str, Counter[str]]]:
    """Step between releases to method to outcomes; edits are made on the older one."""
    cache = open_project({}, ROOT).state_dir() / "cache"
    trees = [WheelTree(wheel_file(wheel, cache)) for wheel in wheels]
    draw = random.Random(seed)
    found: dict[str, dict[str, Counter[str]]] = {}
    for old, new in pairwise(trees):
        row = found.setdefault(f"{old.vllm_version} to {new.vllm_version}", {name: Counter() for name in METHODS})
        for file in HOT_FILES:
            if not old.exists(file):
                continue
            target = {file: new.read(file).decode()} if new.exists(file) else {}
            for insertion in insertions(file, old.read(file), per_file, draw):
                for name, method in METHODS.items():
                    row[name][method(insertion, target).kind] += 1
    return found


def table(found: Mapping[str, Mapping[str, Counter[str]]]) -> str:
    width = max(len(name) for name in (*found, "case")) + 2
    lines = [f"{'case':<{width}}{'method':<20}" + "".join(f"{outcome:>9}" for outcome in OUTCOMES)]
    for case, methods in found.items():
        for name, counts in methods.items():
            cells = "".join(f"{counts[outcome]:>9}" for outcome in OUTCOMES)
            lines.append(f"{case:<{width}}{name:<20}{cells}")
    return "\n".join(lines)


def harm(found: Mapping[str, Mapping[str, Counter[str]]], method: str) -> int:
    """How many edits of one method ended in something harmful."""
    return sum(methods[method][kind] for methods in found.values() for kind in HARMFUL)


def total(found: Mapping[str, Mapping[str, Counter[str]]], method: str) -> int:
    return sum(sum(methods[method].values()) for methods in found.values())


def _judge(insertion: Insertion, text: str) -> Outcome:
    if not _compiles(text):
        return Outcome("broken")
    source = parse_source(text.encode())
    at = [index for index, line in enumerate(source.lines) if line.strip().startswith(f"{insertion.marker} = ")]
    if len(at) != 1:
        return Outcome("twice" if at else "silent")
    holding = [
        (symbol.span[1] - symbol.span[0], name)
        for name, symbols in source.symbols.items()
        for symbol in symbols
        if symbol.span[0] <= at[0] < symbol.span[1]
    ]
    return Outcome("right" if holding and min(holding)[1] == insertion.edit.symbol else "wrong")


def _by_tool(insertion: Insertion, target: Mapping[str, str], command: Sequence[str]) -> Outcome:
    relative = insertion.edit.relative
    before, after = insertion.base_text.splitlines(keepends=True), insertion.text.splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in target.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        (folder / "edit.diff").write_text("".join(unified_diff(before, after, f"a/{relative}", f"b/{relative}")))
        done = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
        file = folder / relative
        if done.returncode != 0 or not file.is_file():
            return Outcome("refused")
        return _judge(insertion, file.read_text())


def _patch(edit: Edit) -> Patch:
    place = Place("", edit.module, edit.symbol, edit.find, edit.count)
    return Patch(
        id="bank",
        title="",
        why="",
        directory="",
        remedies=(),
        aliases=(),
        requires=(),
        conflicts=(),
        platforms=(),
        plan_effects=PlanEffects(False, 0),
        shapes_graph=False,
        reach=Reach((), ()),
        inert_when="",
        covers={},
        upstream=Upstream("never", (), "", ()),
        prove={},
        expect={},
        edits=(EditSpec(edit.id, edit.op, "", edit.body, (place,)),),
        digest="",
    )


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _compiles(text: str) -> bool:
    try:
        compile(text, "target", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", nargs="+", default=[], metavar="VERSION")
    parser.add_argument("--per-file", type=int, default=14)
    options = parser.parse_args()
    found = carried(options.wheels, options.per_file) if options.wheels else synthetic(options.per_file)
    print(table(found))
    print(f"{total(found, 'this project')} edits; harmful: " + ", ".join(f"{m} {harm(found, m)}" for m in METHODS))
    return 1 if harm(found, "this project") else 0


if __name__ == "__main__":
    sys.exit(main())
