#!/usr/bin/env python3
"""What checking and building patches costs, as ratios measured in pairs.

    benchmarks/patch_check.py [--runs 7] [--json]

first check: the whole command `deploy patch check` with every shipped patch over four releases, beside
`git apply --check` of the same edits, one call for each patch and release on files that lie ready. check again: the
command once more, with the verdicts that it kept. build: the whole series, from files that are in memory to a lock on
the disk, beside one `ast.parse` of the same files. Releases are read from .deploy/cache and downloaded once.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from shardwright.connect.trees import WheelTree  # noqa: E402
from shardwright.connect.wheels import wheel_file  # noqa: E402
from shardwright.overlay import names  # noqa: E402
from shardwright.overlay.build import build_overlay  # noqa: E402
from shardwright.overlay.library import list_patches  # noqa: E402
from shardwright.overlay.patch import Patch  # noqa: E402
from shardwright.overlay.refresh import diff_patches  # noqa: E402
from shardwright.overlay.source import parse_source  # noqa: E402

VERSIONS = ("0.28.0", "0.30.0", "0.32.0", "0.33.0")
SERVED = "0.30.0"


class Memory:
    """The files of one release that the patches touch, read once; everything else comes from the wheel."""

    def __init__(self, tree: WheelTree) -> None:
        self._tree = tree
        self._files: dict[str, bytes] = {}
        self.identity, self.root, self.vllm_version = tree.identity, tree.root, tree.vllm_version

    def read(self, relative: str) -> bytes:
        if relative not in self._files:
            self._files[relative] = self._tree.read(relative)
        return self._files[relative]

    def exists(self, relative: str) -> bool:
        return relative in self._files or self._tree.exists(relative)


def seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def paired(one: Callable[[], object], other: Callable[[], object], runs: int) -> list[float]:
    """The ratio of the two in each run, after one run that does not count."""
    one()
    other()
    return [seconds(one) / seconds(other) for _run in range(runs)]


def spread(ratios: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(ratios), 2), "worst": round(max(ratios), 2)}


def check_command(patches: list[Patch]) -> None:
    wheels = [word for version in VERSIONS for word in ("--wheel", version)]
    command = [sys.executable, str(ROOT / "deploy.py"), "patch", "check", *[patch.id for patch in patches], *wheels]
    environment = {**os.environ, "DEPLOY_PROJECT": str(ROOT)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def lay_out(patches: list[Patch], trees: list[WheelTree], folder: Path) -> list[tuple[Path, Path]]:
    """For each release a folder with the files, and for each patch a diff: pairs of (folder, diff)."""
    pairs = []
    for tree in trees:
        for patch in patches:
            diff = folder / f"{patch.id}-{tree.vllm_version}.diff"
            diff.write_text(diff_patches([patch], tree))
            for edit in patch.edits_for(tree.vllm_version):
                file = folder / tree.vllm_version / "vllm" / edit.relative
                if edit.op != "new_module" and not file.exists():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(tree.read(edit.relative))
            pairs.append((folder / tree.vllm_version, diff))
    return pairs


def git_checks(pairs: list[tuple[Path, Path]]) -> None:
    for folder, diff in pairs:
        subprocess.run(["git", "apply", "--check", str(diff)], cwd=folder, check=True)


def series(patches: list[Patch]) -> list[Patch]:
    """Those that may stand in one layout together."""
    chosen: list[Patch] = []
    for patch in patches:
        if not any(patch.id in other.conflicts or other.id in patch.conflicts for other in chosen):
            chosen.append(patch)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    patches = list(list_patches([ROOT / "patches"]))
    trees = [WheelTree(wheel_file(version, ROOT / ".deploy" / "cache")) for version in VERSIONS]
    with tempfile.TemporaryDirectory() as name:
        pairs = lay_out(patches, trees, Path(name))
        kept = ROOT / ".deploy" / "cache" / "checks"
        first = paired(
            lambda: (shutil.rmtree(kept, ignore_errors=True), check_command(patches)),
            lambda: git_checks(pairs),
            options.runs,
        )
        again = paired(lambda: check_command(patches), lambda: git_checks(pairs), options.runs)
    whole = series(patches)
    memory = Memory(trees[VERSIONS.index(SERVED)])
    edits = [edit for patch in whole for edit in patch.edits_for(SERVED) if edit.op != "new_module"]
    files = sorted({edit.relative for edit in edits})

    def build_all() -> None:
        parse_source.cache_clear()
        names.forget_names()
        with tempfile.TemporaryDirectory() as folder:
            build_overlay(whole, SERVED, memory, Path(folder) / "overlay")

    build = paired(build_all, lambda: [ast.parse(memory.read(file)) for file in files], options.runs)
    results = {
        "first_check_over_git_apply": spread(first),
        "check_again_over_git_apply": spread(again),
        "build_over_ast_parse": spread(build),
        "patches": len(patches),
        "releases": len(VERSIONS),
        "files_built": len(files),
    }
    if options.json:
        print(json.dumps(results, indent=1))
        return
    print(f"{len(patches)} patches on {len(VERSIONS)} releases, {options.runs} paired runs")
    rows = {
        "first_check_over_git_apply": "first check / git apply --check",
        "check_again_over_git_apply": "check again / git apply --check",
        "build_over_ast_parse": "build / ast.parse",
    }
    for key, text in rows.items():
        print(f"{text:<34} median {results[key]['median']:>6}  worst {results[key]['worst']:>6}")  # type: ignore[index]


if __name__ == "__main__":
    main()
