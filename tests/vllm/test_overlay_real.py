"""The shipped patches on the vLLM that is installed here: they fit, they compile, and the farm serves them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.connect.trees import InstalledTree
from shardwright.overlay.build import build_overlay
from shardwright.overlay.farm import build_farm
from shardwright.overlay.library import find_patch, list_patches
from shardwright.overlay.lock import verify_overlay
from shardwright.overlay.patch import Patch
from shardwright.overlay.report import as_expected, check_patch

pytestmark = pytest.mark.vllm

PATCHES = Path(__file__).resolve().parents[2] / "patches"
SERIES = {"served": ["pp-cpu-eager", "pp-index-transport"], "recompute": ["pp-index-recompute"]}


@pytest.fixture(scope="module")
def tree() -> InstalledTree:
    return InstalledTree(sys.executable)


def series(name: str) -> list[Patch]:
    patches = [find_patch(patch_id, [PATCHES]) for patch_id in SERIES[name]]
    return [patch for patch in patches if patch is not None]


@pytest.fixture(scope="module")
def overlays(tree: InstalledTree, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("overlays")
    for name in SERIES:
        build_overlay(series(name), tree.vllm_version, tree, folder / name)
    return {name: folder / name for name in SERIES}


@pytest.mark.parametrize("patch", list_patches([PATCHES]), ids=lambda patch: patch.id)
def test_every_shipped_patch_fits_each_anchor_exactly_as_often_as_it_says(patch: Patch, tree: InstalledTree) -> None:
    verdicts = check_patch(patch, tree)
    assert as_expected(patch, tree.vllm_version, verdicts), [str(verdict) for verdict in verdicts]
    assert [verdict.edit for verdict in verdicts] == [edit.id for edit in patch.edits_for(tree.vllm_version)]


@pytest.mark.parametrize("name", SERIES)
def test_built_files_compile_and_verify(overlays: dict[str, Path], tree: InstalledTree, name: str) -> None:
    assert verify_overlay(overlays[name], series(name), tree.vllm_version, tree.identity) == []
    for file in overlays[name].rglob("*.py"):
        compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


@pytest.mark.parametrize("name", SERIES)
def test_nothing_but_the_bodies_and_the_footer_differs_from_the_base(
    overlays: dict[str, Path], tree: InstalledTree, name: str
) -> None:
    bodies = {line.strip() for patch in series(name) for edit in patch.edits for line in edit.body.split("\n")}
    root = overlays[name] / "vllm"
    for file in root.rglob("*.py"):
        relative = file.relative_to(root).as_posix()
        if not relative.startswith("_overlay/"):
            base = tree.read(relative).decode().split("\n")
            extra = [line for line in file.read_text().split("\n") if line not in base]
            assert {line.strip() for line in extra} - bodies == {extra[-1]}
            assert extra[-1].startswith("__overlay__ = ")


def test_the_generic_model_keeps_its_buffer_under_a_private_name(overlays: dict[str, Path]) -> None:
    source = (overlays["served"] / "vllm/model_executor/models/deepseek_v2.py").read_text()
    (model,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == "DeepseekV2Model"
    ]
    stored = {
        target.attr
        for node in ast.walk(model)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    assert "_pp_topk_buffer" in stored
    assert "topk_indices_buffer" not in stored, "the draft proposer would share the buffer with the draft"


@pytest.mark.parametrize("name", SERIES)
def test_in_the_farm_all_but_the_patched_files_is_linked(
    overlays: dict[str, Path], tree: InstalledTree, name: str
) -> None:
    root = build_farm(overlays[name], Path(tree.root)) / "vllm"
    real = {path.relative_to(root) for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
    assert real == {path.relative_to(overlays[name] / "vllm") for path in (overlays[name] / "vllm").rglob("*.py")}
    assert (root / "engine").readlink() == Path(tree.root, "engine")


def test_the_interpreter_imports_the_patched_file_from_the_farm(overlays: dict[str, Path], tree: InstalledTree) -> None:
    farm = build_farm(overlays["served"], Path(tree.root))
    script = (
        "import importlib.util, vllm.v1.worker.cpu_model_runner as runner; "
        "print(importlib.util.find_spec('vllm.v1.worker.cpu_model_runner').origin); print(runner.__overlay__)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(farm)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert answer[-2] == f"{farm}/vllm/v1/worker/cpu_model_runner.py"
    assert answer[-1].startswith("{'patches': ['pp-cpu-eager', 'pp-index-transport']")
