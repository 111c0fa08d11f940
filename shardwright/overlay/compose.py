"""Apply a series of patches to a pristine tree in memory: whole files, or every reason why not."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.connect.trees import SourceTree
from shardwright.overlay import refusals
from shardwright.overlay.anchors import Refusal, Splice, place
from shardwright.overlay.edits import ADDITIVE_PACKAGE, Edit
from shardwright.overlay.names import ImportCheck, undefined_names
from shardwright.overlay.patch import Patch
from shardwright.overlay.source import FOOTER_NAME, Source, parse_source
from shardwright.overlay.targets import series_key
from shardwright.overlay.verdicts import EditVerdict, Verdict
from shardwright.overlay.verified import DIGEST_DIGITS, read_verified


@dataclass(frozen=True)
class PlacedEdit:
    """Where an edit landed: `line` counts from 1 in the pristine file, the first of several where `count` is more."""

    patch: str
    edit: str
    symbol: str
    symbol_sha256: str
    line: int


@dataclass(frozen=True)
class PatchedFile:
    """One engine file with all its edits; paths are below the vllm package."""

    relative: str
    base_sha256: str
    content: bytes
    edits: tuple[PlacedEdit, ...]


@dataclass(frozen=True)
class AddedFile:
    relative: str
    content: bytes


@dataclass(frozen=True)
class Composition:
    """`verdicts` has one entry for each edit, in series order; the files are usable only where all are OK."""

    files: tuple[PatchedFile, ...]
    added: tuple[AddedFile, ...]
    verdicts: tuple[EditVerdict, ...]

    @property
    def problems(self) -> tuple[EditVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.verdict is not Verdict.OK)

    def contents(self) -> dict[str, bytes]:
        """Every file to write, by its path below the vllm package."""
        return {file.relative: file.content for file in self.files} | {
            file.relative: file.content for file in self.added
        }


@dataclass(frozen=True)
class _Item:
    """One edit of one patch, with its rank in the series."""

    rank: int
    patch: Patch
    edit: Edit


def engine_label(tree: SourceTree) -> str:
    return f"vllm {tree.vllm_version} ({tree.identity})"


def compose(patches: Sequence[Patch], tree: SourceTree) -> Composition:
    """Place every edit of `patches` on the pristine files of `tree`.

    All anchors are resolved on the pristine text and may not overlap, so the result does not depend on the order,
    but for insertions at one point, which follow the series. Nothing is written.
    """
    return _Composer(patches, tree).run()


class _Composer:
    def __init__(self, patches: Sequence[Patch], tree: SourceTree) -> None:
        self._patches = patches
        self._tree = tree
        self._engine = engine_label(tree)
        self._footer = _footer(patches, tree.vllm_version)
        self._refusals: dict[int, Refusal] = {}
        self._verified = {patch.id: read_verified(patch.directory) for patch in patches}
        self._outside: list[EditVerdict] = []

    def run(self) -> Composition:
        items = self._items()
        added_modules = {item.edit.module: item.edit.body for item in items if item.edit.op == "new_module"}
        self._imports = ImportCheck(self._tree, added_modules)
        by_file: dict[str, list[_Item]] = {}
        for item in items:
            if item.edit.op != "new_module":
                by_file.setdefault(item.edit.relative, []).append(item)
        files = tuple(self._patched(relative, by_file[relative]) for relative in sorted(by_file))
        added = self._added([item for item in items if item.edit.op == "new_module"])
        self._mark_obsolete(items)
        verdicts = (*self._outside, *(self._verdict(item) for item in items))
        return Composition(tuple(file for file in files if file is not None), added, verdicts)

    def _items(self) -> list[_Item]:
        items: list[_Item] = []
        version = self._tree.vllm_version
        for patch in self._patches:
            if patch.supports(version):
                for edit in patch.edits_for(version):
                    items.append(_Item(len(items), patch, edit))
            else:
                self._outside.append(
                    EditVerdict(
                        patch.id,
                        "",
                        self._engine,
                        Verdict.NOT_FOR_VERSION,
                        "",
                        f"written for {' and '.join(patch.ranges())}",
                        f"add a variant for {version} to {patch.directory}/patch.yaml",
                    )
                )
        return items

    def _verdict(self, item: _Item) -> EditVerdict:
        refusal = self._refusals.get(item.rank) or Refusal(Verdict.OK, "placed", "")
        symbol = f"{item.edit.module}:{item.edit.symbol}" if item.edit.symbol else item.edit.module
        return EditVerdict(
            item.patch.id, item.edit.id, self._engine, refusal.verdict, symbol, refusal.message, refusal.fix
        )

    def _refuse(self, items: Sequence[_Item], refusal: Refusal) -> None:
        for item in items:
            self._refusals.setdefault(item.rank, refusal)

    def _patched(self, relative: str, items: list[_Item]) -> PatchedFile | None:
        base = self._base(relative, items)
        if base is None:
            return None
        data, source = base
        splices: list[tuple[_Item, Splice]] = []
        for item in items:
            placed = place(item.edit, source)
            if isinstance(placed, Refusal):
                self._refuse([item], placed)
            else:
                splices.extend((item, splice) for splice in placed)
        self._refuse_conflicts(relative, splices)
        self._refuse_missing_imports(items)
        self._refuse_changed_symbols(items, source)
        if any(item.rank in self._refusals for item in items):
            return None
        content = self._rendered(source, splices)
        if broken := _syntax_error(content, relative):
            self._refuse(self._culprits(source, splices, relative), refusals.breaks(broken))
            return None
        if unknown := undefined_names(content.decode(), "\n".join(source.lines), relative):
            users = [item for item in items if any(name in item.edit.body for name in unknown)]
            self._refuse(users or items, refusals.undefined(unknown))
            return None
        first = {item.rank: splice.anchor[0] for item, splice in reversed(splices)}
        edits = tuple(
            PlacedEdit(
                item.patch.id,
                item.edit.id,
                item.edit.symbol,
                source.digest(item.edit.symbol),
                min(first[item.rank] + 1, len(source.lines)),
            )
            for item in items
        )
        return PatchedFile(relative, hashlib.sha256(data).hexdigest(), content, edits)

    def _base(self, relative: str, items: list[_Item]) -> tuple[bytes, Source] | None:
        try:
            data = self._tree.read(relative)
        except FileNotFoundError:
            self._refuse(items, self._file_gone(relative))
            return None
        try:
            source = parse_source(data)
        except (SyntaxError, ValueError) as error:
            message = f"the engine's own file does not parse: {error}"
            self._refuse(items, Refusal(Verdict.BREAKS_SYNTAX, message, "check that the engine is intact"))
            return None
        if source.carries_footer:
            self._refuse(items, refusals.residue(relative))
            return None
        for item in items:
            merged = [text for text in item.patch.upstream.obsolete_if if text.encode() in data]
            if merged:
                self._refuse([item], refusals.obsolete(item.patch, relative, merged[0]))
        return data, source

    def _file_gone(self, relative: str) -> Refusal:
        package = f"{relative.removesuffix('.py')}/__init__.py"
        if self._tree.exists(package):
            return Refusal(
                Verdict.FILE_GONE, f"{relative} is a package in this engine", "end the module's name with .__init__"
            )
        return Refusal(
            Verdict.FILE_GONE,
            f"{relative} is not in this engine",
            "find where upstream moved the code, then add a variant with the new module",
        )

    def _refuse_conflicts(self, relative: str, splices: Sequence[tuple[_Item, Splice]]) -> None:
        for index, (item, splice) in enumerate(splices):
            for other, other_splice in splices[index + 1 :]:
                if not collide(splice, other_splice):
                    continue
                for mine, theirs, line in ((item, other, splice), (other, item, other_splice)):
                    self._refuse(
                        [mine],
                        Refusal(
                            Verdict.CONFLICT,
                            f"wants line {line.anchor[0] + 1} of {relative}, and so does "
                            f"{theirs.patch.id}/{theirs.edit.id}",
                            "leave one of the two out, or merge them into one edit",
                        ),
                    )

    def _refuse_missing_imports(self, items: Sequence[_Item]) -> None:
        for item in items:
            if missing := self._imports.missing(item.edit.body):
                self._refuse([item], refusals.missing_import(missing))

    def _refuse_changed_symbols(self, items: Sequence[_Item], source: Source) -> None:
        for item in items:
            verified = self._verified[item.patch.id]
            digest = source.digest(item.edit.symbol)[:DIGEST_DIGITS]
            # A whole module changes with every release; what matters of it is the anchor.
            if verified is None or not item.edit.symbol or digest in verified.get(item.edit.id, ()):
                continue
            self._refuse([item], refusals.symbol_changed(item.patch, item.edit))

    def _mark_obsolete(self, items: Sequence[_Item]) -> None:
        """A patch whose every edit stands in a pristine engine is upstream; nothing of it is needed any more."""
        for patch in self._patches:
            anchored = [item for item in items if item.patch is patch and item.edit.op != "new_module"]
            already = [item for item in anchored if self._is_already(item)]
            if anchored and len(already) == len(anchored):
                for item in anchored:
                    self._refusals[item.rank] = refusals.upstream_has(item.patch, self._refusals[item.rank].message)

    def _is_already(self, item: _Item) -> bool:
        refusal = self._refusals.get(item.rank)
        return refusal is not None and refusal.verdict is Verdict.ALREADY

    def _rendered(self, source: Source, splices: Sequence[tuple[_Item, Splice]]) -> bytes:
        lines = list(source.lines)
        ordered = sorted(splices, key=lambda pair: (pair[1].span, pair[0].rank))
        for _item, splice in reversed(ordered):
            start, end = splice.span
            lines[start:end] = splice.lines
        return source.newline.join([*lines, self._footer, ""]).encode()

    def _culprits(self, source: Source, splices: Sequence[tuple[_Item, Splice]], relative: str) -> list[_Item]:
        items = {item.rank: item for item, _splice in splices}
        alone = [
            item
            for rank, item in items.items()
            if _syntax_error(self._rendered(source, [pair for pair in splices if pair[0].rank == rank]), relative)
        ]
        return alone or list(items.values())

    def _added(self, items: Sequence[_Item]) -> tuple[AddedFile, ...]:
        if not items:
            return ()
        if self._tree.exists(ADDITIVE_PACKAGE):
            self._refuse(items, refusals.residue(ADDITIVE_PACKAGE))
        owners: dict[str, _Item] = {}
        files = [AddedFile(f"{ADDITIVE_PACKAGE}/__init__.py", f"{self._footer}\n".encode())]
        for item in items:
            relative = item.edit.relative
            owner = owners.setdefault(relative, item)
            if owner is not item:
                message = f"both {owner.patch.id}/{owner.edit.id} and {item.patch.id}/{item.edit.id} add {relative}"
                self._refuse([owner, item], Refusal(Verdict.CONFLICT, message, "rename one of the two modules"))
            content = f"{item.edit.body.rstrip()}\n{self._footer}\n".encode()
            if broken := _syntax_error(content, relative):
                self._refuse([item], refusals.breaks(broken))
            elif unknown := undefined_names(content.decode(), "", relative):
                self._refuse([item], refusals.undefined(unknown))
            self._refuse_missing_imports([item])
            files.append(AddedFile(relative, content))
        return tuple(sorted(files, key=lambda file: file.relative))


def collide(one: Splice, other: Splice) -> bool:
    """Two insertions never do; a replacement does with whatever else needs one of its lines."""
    for replacing, touched in ((one, other), (other, one)):
        start, end = replacing.span
        if start == end:
            continue
        if start < touched.anchor[1] and touched.anchor[0] < end:
            return True
    return False


def _syntax_error(content: bytes, relative: str) -> str:
    """What the compiler says, "" when it is content; parsing alone would let `return` outside a function pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(content, relative, "exec", dont_inherit=True)
        except SyntaxError as error:
            return f"{error.msg} at its line {error.lineno}"
        except ValueError as error:
            return str(error)
    return ""


def _footer(patches: Sequence[Patch], version: str) -> str:
    content = {"patches": [patch.id for patch in patches], "series": series_key(patches, version)}
    return f"{FOOTER_NAME} = {json.dumps(content)}"
