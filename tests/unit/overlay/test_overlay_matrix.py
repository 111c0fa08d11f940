"""The shipped patches on the four releases that they are written for, and the matrix that the command prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from overlay_samples import WORKER, edit, write_patch

from shardwright.connect.trees import SourceTree, WheelTree
from shardwright.connect.wheels import wheel_file
from shardwright.overlay.library import find_patch, list_patches
from shardwright.overlay.reach import Reacher
from shardwright.overlay.report import as_expected, check_patch

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ("0.28.0", "0.30.0", "0.32.0", "0.33.0")
DEAD_ON_CUDA = ("keep-buffer", "gate-generic")
COLUMNS = ["patch", "edit", "engine", "verdict", "symbol", "reached", "message", "fix"]


@pytest.fixture(scope="module", params=VERSIONS)
def release(request: pytest.FixtureRequest) -> tuple[SourceTree, Reacher]:
    tree = WheelTree(wheel_file(request.param, ROOT / ".deploy" / "cache"))
    return tree, Reacher(tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", [patch.id for patch in list_patches([ROOT / "patches"])])
def test_a_shipped_patch_has_on_each_release_what_it_declares(release: tuple[SourceTree, Reacher], name: str) -> None:
    tree, reacher = release
    patch = find_patch(name, [ROOT / "patches"])
    assert patch is not None
    rows = check_patch(patch, tree, None, reacher)
    assert as_expected(patch, tree.vllm_version, rows), [str(row) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pp-index-transport", "pp-index-recompute"])
def test_from_0_30_on_cuda_the_generic_body_is_not_run_and_the_causal_model_is(
    release: tuple[SourceTree, Reacher], name: str
) -> None:
    tree, reacher = release
    patch = find_patch(name, [ROOT / "patches"])
    assert patch is not None
    on_cuda = {row.edit: row.reached for row in check_patch(patch, tree, "cuda", reacher)}
    on_cpu = {row.edit: row.reached for row in check_patch(patch, tree, "cpu", reacher)}
    for dead in DEAD_ON_CUDA:
        if dead in on_cuda:
            assert on_cuda[dead] is (tree.vllm_version == "0.28.0")
            assert on_cpu[dead] is True
    if name == "pp-index-transport":
        assert all(on_cuda[edit_id] and on_cpu[edit_id] for edit_id in ("attach", "receive", "send"))
    else:
        assert on_cuda["gate-v32"] is (tree.vllm_version != "0.28.0")


def wheel(folder: Path, version: str, worker: bytes) -> Path:
    import zipfile

    file = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("vllm/_version.py", f"__version__ = version = '{version}'\n")
        archive.writestr("vllm/worker.py", worker)
        archive.writestr("vllm/model_executor/models/registry.py", "_MODELS = {}\n")
        archive.writestr(f"vllm-{version}.dist-info/RECORD", version)
    return file


def check(project: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, str(ROOT / "deploy.py"), "patch", "check", "demo", "--json", *words]
    environment = {**os.environ, "DEPLOY_PROJECT": str(project)}
    done = subprocess.run(command, env=environment, cwd=project, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def engines(tmp_path: Path) -> list[str]:
    (tmp_path / "configs" / "layouts").mkdir(parents=True)
    files = [
        wheel(tmp_path, "0.30.0", WORKER),
        wheel(tmp_path, "0.30.1", WORKER.replace(b"if self.ready:", b"if self.ready():")),
    ]
    return [word for file in files for word in ("--wheel", str(file))]


def test_the_matrix_has_a_row_for_each_edit_on_each_engine(tmp_path: Path, engines: list[str]) -> None:
    write_patch(tmp_path / "patches" / "demo", [edit()])
    status, rows = check(tmp_path, *engines)
    assert status == 1
    assert [list(row) for row in rows] == [COLUMNS] * 2
    assert [(row["verdict"], row["reached"]) for row in rows] == [("OK", "unknown"), ("ANCHOR_GONE", "unknown")]
    assert all(row["fix"] for row in rows if row["verdict"] != "OK")


def test_the_exit_code_follows_what_the_patch_expects(tmp_path: Path, engines: list[str]) -> None:
    folder = tmp_path / "patches" / "demo"
    write_patch(folder, [edit()], expect={">=0.30.1": "ANCHOR_GONE"})
    assert check(tmp_path, *engines)[0] == 0
    write_patch(folder, [edit()], expect={">=0.30.1": "OBSOLETE"})
    assert check(tmp_path, *engines)[0] == 1
