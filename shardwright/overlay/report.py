"""What `patch check` asks: does this patch fit this engine, edit by edit, and is that what its author expects."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.connect.trees import SourceTree
from shardwright.facts.versions import version_in
from shardwright.overlay.compose import compose
from shardwright.overlay.patch import Patch
from shardwright.overlay.verdicts import EditVerdict, Verdict

__all__ = ["EditVerdict", "Verdict", "as_expected", "check_patch", "expected_verdict"]


def check_patch(patch: Patch, tree: SourceTree) -> list[EditVerdict]:
    """One verdict for each edit, or one for the patch where it was not written for the version. Writes nothing."""
    return list(compose((patch,), tree).verdicts)


def expected_verdict(patch: Patch, vllm_version: str) -> str:
    """What the patch declares under `expect` for this version; OK where it declares nothing."""
    return next((verdict for range_, verdict in patch.expect.items() if version_in(vllm_version, range_)), "OK")


def as_expected(patch: Patch, vllm_version: str, verdicts: Sequence[EditVerdict]) -> bool:
    """Whether the edits got the expected verdict: all of them for OK, at least one for any other."""
    expected = expected_verdict(patch, vllm_version)
    matches = [verdict.verdict.value == expected for verdict in verdicts]
    return all(matches) if expected == Verdict.OK.value else any(matches)
