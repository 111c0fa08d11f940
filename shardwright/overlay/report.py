"""What `patch check` asks: does a patch fit an engine, is its code run there, is that what its author expects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.connect.trees import SourceTree
from shardwright.facts.versions import version_in
from shardwright.overlay.compose import compose
from shardwright.overlay.edits import PLATFORMS, Edit
from shardwright.overlay.patch import Patch
from shardwright.overlay.reach import Reacher
from shardwright.overlay.siblings import similar_code
from shardwright.overlay.source import parse_source
from shardwright.overlay.verdicts import EditVerdict, Verdict
from shardwright.overlay.verified import accept

__all__ = ["EditVerdict", "Verdict", "accept_symbols", "as_expected", "check_patch", "expected_verdict"]


def check_patch(
    patch: Patch, tree: SourceTree, platform: str | None = None, reacher: Reacher | None = None
) -> list[EditVerdict]:
    """One verdict for each edit, or one for the patch where it was not written for the version. Writes nothing.

    Without `platform` an edit must be reached on every platform that requires it, and `reached` speaks of the first.
    """
    verdicts = list(compose((patch,), tree).verdicts)
    if not patch.supports(tree.vllm_version):
        return verdicts
    edits = {edit.id: edit for edit in patch.edits_for(tree.vllm_version)}
    judge = _Judge(patch, reacher or Reacher(tree), platform)
    rows = [judge.row(edits[verdict.edit], verdict) for verdict in verdicts]
    if any(row.reached for row in rows):
        # What an added module holds is run by the edits that call it.
        rows = [replace(row, reached=True) if edits[row.edit].op == "new_module" else row for row in rows]
    return rows


def accept_symbols(patch: Patch, tree: SourceTree) -> None:
    """Record that the patch was looked at on the symbols of this engine, beside the patch."""
    digests = []
    for edit in patch.edits_for(tree.vllm_version):
        if edit.op != "new_module" and edit.symbol and tree.exists(edit.relative):
            source = parse_source(tree.read(edit.relative))
            if source.spans(edit.symbol):
                digests.append((edit.id, source.digest(edit.symbol)))
    accept(patch.directory, digests)


def expected_verdict(patch: Patch, vllm_version: str) -> str:
    """What the patch declares under `expect` for this version; OK where it declares nothing."""
    return next((verdict for range_, verdict in patch.expect.items() if version_in(vllm_version, range_)), "OK")


def as_expected(patch: Patch, vllm_version: str, verdicts: Sequence[EditVerdict]) -> bool:
    """Whether the edits got the expected verdict: all of them for OK, at least one for any other."""
    expected = expected_verdict(patch, vllm_version)
    matches = [verdict.verdict.value == expected for verdict in verdicts]
    return all(matches) if expected == Verdict.OK.value else any(matches)


class _Judge:
    def __init__(self, patch: Patch, reacher: Reacher, platform: str | None) -> None:
        self._names = (*patch.reach.models, *patch.reach.drafts)
        self._reacher = reacher
        own = patch.platforms or PLATFORMS
        self._platforms = (platform,) if platform else own
        self._default = own

    def row(self, edit: Edit, verdict: EditVerdict) -> EditVerdict:
        reached = {platform: self._reacher.reached(edit, self._names, platform) for platform in self._platforms}
        verdict = replace(verdict, reached=reached[self._platforms[0]])
        if verdict.verdict in (Verdict.SYMBOL_GONE, Verdict.ANCHOR_GONE, Verdict.FILE_GONE):
            return replace(verdict, message=verdict.message + self._similar(edit, self._platforms[0]))
        if verdict.verdict is not Verdict.OK:
            return verdict
        required = self._default if edit.required_on is None else edit.required_on
        for platform, runs in reached.items():
            if runs is False and platform in required:
                return self._unreached(edit, verdict, platform)
        return verdict

    def _unreached(self, edit: Edit, verdict: EditVerdict, platform: str) -> EditVerdict:
        closure = self._reacher.closure(self._names[0], platform)
        by = ""
        if closure is not None:
            served = closure.served
            by = f"{served.architecture} is served by {served.module}:{served.name} (registry.py:{served.line}); "
        return replace(
            verdict,
            verdict=Verdict.UNREACHED,
            reached=False,
            message=f"on {platform} {by}the edit would apply, but this code does not run"
            + self._similar(edit, platform),
            fix=f"add a variant for the code that runs, or take {platform} out of required_on",
        )

    def _similar(self, edit: Edit, platform: str) -> str:
        closures = [self._reacher.closure(name, platform) for name in self._names]
        found = similar_code(edit, [closure for closure in closures if closure is not None], self._reacher.tree)
        return f"; similar code that runs: {', '.join(found)}" if found else ""
