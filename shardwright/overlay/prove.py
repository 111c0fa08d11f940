"""Judge what was seen of a running engine: four rungs from "the bytes are there" to "every rank ran them"; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.connect.trees import PACKAGE
from shardwright.overlay.edits import Edit
from shardwright.overlay.lock import Lock
from shardwright.overlay.patch import Patch
from shardwright.overlay.verdicts import Verdict

UNKNOWN = "UNKNOWN"
RUNGS = ("bytes", "import", "reach", "hits")

CONDITIONS = ("padded", "draft")
"""What a hit line may depend on: the model folder carries a plan for an odd TP; a draft model is served."""

_RANK = re.compile(r"\bpp_rank=(\d+)\b")
_TENSOR_RANK = re.compile(r"\btp_rank=(\d+)\b")
_DIRECTION = re.compile(r"\b(recv|send)=True\b")


@dataclass(frozen=True)
class ProofRow:
    """One thing looked at on one rung; `subject` is a file, a module, a symbol or a stage."""

    rung: str
    verdict: str
    patch: str
    subject: str
    message: str
    fix: str


@dataclass(frozen=True)
class Proof:
    """All four rungs of one running engine."""

    instance: str
    rows: tuple[ProofRow, ...]

    @property
    def proven(self) -> bool:
        """No rung failed, and none is unknown but for reach where a hit line says more."""
        return not self.failures and not self.unknown

    @property
    def only_unknown(self) -> bool:
        return not self.failures and bool(self.unknown)

    @property
    def failures(self) -> tuple[ProofRow, ...]:
        return tuple(row for row in self.rows if row.verdict not in (Verdict.OK.value, UNKNOWN))

    @property
    def unknown(self) -> tuple[ProofRow, ...]:
        hit = {row.patch for row in self.rows if row.rung == "hits" and row.verdict == Verdict.OK.value}
        return tuple(
            row for row in self.rows if row.verdict == UNKNOWN and not (row.rung == "reach" and row.patch in hit)
        )

    def as_data(self) -> dict[str, Any]:
        worst = {rung: self._rung_verdict(rung) for rung in RUNGS}
        return {
            "instance": self.instance,
            "proven": self.proven,
            "rungs": worst,
            "rows": [asdict(row) for row in self.rows],
        }

    def _rung_verdict(self, rung: str) -> str:
        rows = [row.verdict for row in self.rows if row.rung == rung]
        bad = [verdict for verdict in rows if verdict not in (Verdict.OK.value, UNKNOWN)]
        if bad:
            return bad[0]
        return Verdict.OK.value if rows and UNKNOWN not in rows else UNKNOWN


def bytes_rung(
    lock: Lock, inside: Mapping[str, str | None], on_host: Mapping[str, str | None], mounted: Iterable[str], layout: str
) -> Iterator[ProofRow]:
    """The sha256 of every generated file inside the engine and on the host, beside the lock.

    `mounted`: the files, or folders, below the package that the engine has as mounts.
    """
    bases = {file.relative: file.base_sha256 for file in lock.files}
    covered = tuple(mounted)
    for relative, wanted in lock.results().items():
        verdict, message, fix = Verdict.OK, "equals the lock", ""
        is_mounted = any(relative == target or relative.startswith(f"{target}/") for target in covered)
        found = inside.get(relative)
        if not is_mounted:
            state = "the engine's own file" if found == bases.get(relative) else "another file"
            verdict, message = Verdict.UNMOUNTED, f"the engine has {state} there, nothing is mounted"
            fix = f"deploy stop {layout}, then deploy start {layout}"
        elif on_host.get(relative) != wanted:
            verdict = Verdict.TAMPERED
            kept = "the engine still has the built file" if found == wanted else "and so has the engine"
            message, fix = f"the file on this host is not what was built, {kept}", f"deploy patch build {layout}"
        elif found != wanted:
            verdict, message = Verdict.STALE_MOUNT, "the engine holds an earlier file than this host"
            fix = f"deploy stop {layout}, then deploy start {layout}: a mount keeps the file that it was made with"
        yield ProofRow("bytes", verdict.value, _patches_of(lock, relative), relative, message, fix)


def import_rung(lock: Lock, root: str, seen: Mapping[str, Mapping[str, Any]], layout: str) -> Iterator[ProofRow]:
    """Whether each module, imported by the engine's interpreter, is the overlay's and says so itself."""
    for module, found in seen.items():
        relative = _relative(module, lock)
        expected = f"{root}/{relative}"
        verdict, message, fix = Verdict.OK, f"imports {expected}", ""
        if found.get("error"):
            verdict, message = Verdict.BREAKS_IMPORT, str(found["error"])
            fix = f"deploy logs {layout}; the body imports what this engine cannot give"
        elif found.get("file") != expected:
            verdict, message = Verdict.NOT_LIVE, f"imports {found.get('file')}, not {expected}"
            fix = "remove the second vllm from the engine's path, or correct engine.package_root"
        elif found.get("series") != lock.series:
            verdict, message = Verdict.NOT_LIVE, f"runs code of series {found.get('series')}, not {lock.series}"
            fix = "old bytecode wins: remove __pycache__ beside it, or set env PYTHONPYCACHEPREFIX"
        yield ProofRow("import", verdict.value, _patches_of(lock, relative), module, message, fix)


def reach_rung(
    patch: Patch,
    edits: Sequence[Edit],
    reached: Mapping[str, bool | None],
    served: str,
    platform: str,
    layout: str,
    spare: Collection[str] = (),
) -> Iterator[ProofRow]:
    """Whether the served model runs through each edited symbol; `reached` is by edit id, `served` names the class.

    `spare`: ids of edits that only a draft runs through, where none is served.
    """
    for edit in edits:
        if edit.op == "new_module":
            continue
        required = (patch.platforms or (platform,)) if edit.required_on is None else edit.required_on
        subject = f"{edit.module}:{edit.symbol}" if edit.symbol else edit.module
        runs = reached[edit.id]
        if runs is None:
            yield ProofRow("reach", UNKNOWN, patch.id, subject, "no model code; its hit line decides", "")
        elif runs or platform not in required or edit.id in spare:
            unneeded = "only a draft runs it, and none is served" if edit.id in spare else f"not needed on {platform}"
            message = f"run by {served}" if runs else unneeded
            yield ProofRow("reach", Verdict.OK.value, patch.id, subject, message, "")
        else:
            yield ProofRow(
                "reach",
                Verdict.UNREACHED.value,
                patch.id,
                subject,
                f"{served} does not run through it",
                f"deploy patch check {patch.id} --layout {layout}, which shows similar code that runs",
            )


@dataclass(frozen=True)
class ExpectedHits:
    """What the log must hold: hit lines for each pipeline stage, each with its directions where the patch has some."""

    line: str
    stages: Mapping[int, frozenset[str]]
    per_stage: int
    """Lines that each of them must give: one for each tensor-parallel rank, at least."""
    each_rank: bool = False
    """Whether the lines name their `tp_rank`, and every one of them must be there."""


def hits_rung(patch: Patch, expected: Sequence[ExpectedHits], log: Iterable[str], layout: str) -> Iterator[ProofRow]:
    """Whether every rank that must run the patched code said so in the log; no rank may that must not."""
    if not expected:
        yield ProofRow("hits", UNKNOWN, patch.id, "", "the patch declares no hit line", "add prove.hit to patch.yaml")
        return
    lines = list(log)
    for hits in expected:
        yield from _line_hits(patch, hits, [line for line in lines if hits.line in line], layout)


def _line_hits(patch: Patch, expected: ExpectedHits, lines: Sequence[str], layout: str) -> Iterator[ProofRow]:
    counts: Counter[int] = Counter()
    directions: dict[int, set[str]] = {}
    ranks: dict[int, set[int]] = {}
    for line in lines:
        match, tensor_rank = _RANK.search(line), _TENSOR_RANK.search(line)
        rank = int(match[1]) if match else -1
        counts[rank] += 1
        ranks.setdefault(rank, set()).update([int(tensor_rank[1])] if tensor_rank else [])
        directions.setdefault(rank, set()).update(_DIRECTION.findall(line))
    fix = f"deploy logs {layout}; deploy patch check {patch.id} --layout {layout}"
    hit = sum(counts[rank] >= expected.per_stage for rank in expected.stages)
    for rank, wanted in sorted(expected.stages.items()):
        subject, of = f"stage {rank}", f"{hit} of {len(expected.stages)} stages are hit"
        silent = sorted(set(range(expected.per_stage)) - ranks.get(rank, set())) if expected.each_rank else []
        if silent:
            message = f"no line '{expected.line}' of TP rank {', '.join(map(str, silent))}"
            yield ProofRow("hits", Verdict.NOT_LIVE.value, patch.id, subject, message, fix)
        elif counts[rank] < expected.per_stage:
            message = f"{counts[rank]} hit lines of {expected.per_stage}; {of}"
            yield ProofRow("hits", Verdict.NOT_LIVE.value, patch.id, subject, message, fix)
        elif wanted and directions[rank] != wanted:
            found = " and ".join(sorted(directions[rank])) or "nothing"
            message = f"the stage does {found}, not {' and '.join(sorted(wanted))}"
            yield ProofRow("hits", Verdict.NOT_LIVE.value, patch.id, subject, message, fix)
        else:
            yield ProofRow("hits", Verdict.OK.value, patch.id, subject, f"{counts[rank]} hit lines", "")
    for rank in sorted(set(counts) - set(expected.stages)):
        message = "hit lines from a stage that should not run it"
        yield ProofRow("hits", Verdict.NOT_LIVE.value, patch.id, f"stage {rank}", message, fix)
    if not expected.stages and not counts:
        message = "no stage of this layout needs it, and none ran it"
        yield ProofRow("hits", Verdict.OK.value, patch.id, "", message, "")


def expected_hits(
    patch: Patch, stage_orphans: Sequence[Sequence[int]], tensor: int, conditions: Collection[str] = CONDITIONS
) -> tuple[ExpectedHits, ...]:
    """What `prove.hit`, one map or a list of them, asks of a layout.

    `stage_orphans`: for each pipeline stage the layers that lost their index source to its boundary. `conditions`:
    those of CONDITIONS that hold; a line whose `when` names another is asked of no stage. Empty when the patch declares
    no hit line, or in other words than these.
    """
    declared = patch.prove.get("hit")
    entries = declared if isinstance(declared, list) else [declared]
    found = [_expected(entry, stage_orphans, tensor, conditions) for entry in entries]
    return () if None in found else tuple(hits for hits in found if hits is not None)


def _expected(
    hit: object, stage_orphans: Sequence[Sequence[int]], tensor: int, conditions: Collection[str]
) -> ExpectedHits | None:
    if not isinstance(hit, Mapping) or not isinstance(hit.get("line"), str):
        return None
    when, ranks = hit.get("when", []), hit.get("ranks", "any")
    if not isinstance(when, list) or not set(when) <= set(CONDITIONS) or ranks not in ("any", "each"):
        return None
    stages = _expected_stages(hit.get("stages"), stage_orphans)
    if stages is None:
        return None
    return ExpectedHits(hit["line"], stages if set(when) <= set(conditions) else {}, tensor, ranks == "each")


def _expected_stages(word: object, stage_orphans: Sequence[Sequence[int]]) -> dict[int, frozenset[str]] | None:
    count = len(stage_orphans)
    unsafe = [stage for stage in range(count) if stage_orphans[stage]]
    match word:
        case "all":
            return {stage: frozenset() for stage in range(count)}
        case "later":
            return {stage: frozenset() for stage in range(1, count)}
        case "last":
            return {count - 1: frozenset()}
        case "orphans":
            return {stage: frozenset() for stage in unsafe}
        case "boundaries":
            stages: dict[int, frozenset[str]] = {}
            for stage in unsafe:
                stages[stage] = stages.get(stage, frozenset()) | {"recv"}
                stages[stage - 1] = stages.get(stage - 1, frozenset()) | {"send"}
            return stages
        case _:
            return None


def _patches_of(lock: Lock, relative: str) -> str:
    for file in lock.files:
        if file.relative == relative:
            return ", ".join(dict.fromkeys(edit.patch for edit in file.edits))
    return ", ".join(patch.id for patch in lock.patches)


def _relative(module: str, lock: Lock) -> str:
    relative = module.removeprefix(f"{PACKAGE}.").replace(".", "/")
    package = f"{relative}/__init__.py"
    return package if package in lock.results() else f"{relative}.py"
