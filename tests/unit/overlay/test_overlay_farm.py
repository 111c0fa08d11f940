"""The link farm: patched files real, all else linked, and never rebuilt for other contents under one name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from overlay_samples import WORKER, MemoryTree, edit, new_module

from shardwright.errors import DeployError
from shardwright.overlay.build import build_overlay
from shardwright.overlay.farm import build_farm
from shardwright.overlay.patch import Patch

MakePatch = Callable[..., Patch]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installed package with a patched file two folders deep and neighbours on each level."""
    root = tmp_path / "site" / "vllm"
    (root / "v1" / "worker" / "__pycache__").mkdir(parents=True)
    (root / "models").mkdir()
    for name in ("__init__.py", "envs.py", "v1/__init__.py", "v1/core.py", "v1/worker/__init__.py", "models/a.py"):
        (root / name).write_text(f"name = {name!r}\n")
    (root / "v1" / "worker" / "cpu.py").write_bytes(WORKER)
    return root


@pytest.fixture
def overlay(make_patch: MakePatch, package: Path, tmp_path: Path) -> Path:
    patch = make_patch(
        edit(module="vllm.v1.worker.cpu"), new_module(body="new.pyfrag"), bodies={"new.pyfrag": "value = 1\n"}
    )
    destination = tmp_path / "overlays" / "demo"
    build_overlay([patch], "0.30.0", MemoryTree({"v1/worker/cpu.py": WORKER}), destination)
    return destination


def test_only_patched_files_are_real(overlay: Path, package: Path) -> None:
    root = build_farm(overlay, package) / "vllm"
    real = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
    links = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_symlink()}
    assert real == {"v1/worker/cpu.py", "_overlay/__init__.py", "_overlay/demo.py"}
    assert links == {"__init__.py", "envs.py", "models", "v1/__init__.py", "v1/core.py", "v1/worker/__init__.py"}
    assert (root / "models").readlink() == package / "models"


def test_an_interpreter_with_the_farm_first_imports_the_patched_file(overlay: Path, package: Path) -> None:
    farm = build_farm(overlay, package)
    script = (
        "import vllm.v1.worker.cpu as cpu, vllm.models.a, vllm._overlay.demo as demo; "
        "print(cpu.__file__, cpu.__overlay__, demo.value)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{farm}:{package.parent}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert answer.startswith(f"{farm}/vllm/v1/worker/cpu.py {{'patches': ['demo']")
    assert answer.endswith("1\n")
    assert build_farm(overlay, package) == farm


def test_building_again_touches_nothing_and_repairs_what_was_harmed(overlay: Path, package: Path) -> None:
    farm = build_farm(overlay, package)
    file = farm / "vllm" / "v1" / "worker" / "cpu.py"
    before = file.stat().st_ino
    assert build_farm(overlay, package) == farm and file.stat().st_ino == before
    good = file.read_bytes()
    file.write_text("import os\n")
    assert build_farm(overlay, package) == farm and file.read_bytes() == good


def test_other_contents_get_another_farm_so_that_one_in_use_stays(overlay: Path, package: Path) -> None:
    first = build_farm(overlay, package)
    (package / "late.py").write_text("")
    second = build_farm(overlay, package)
    assert second != first and first.is_dir() and (second / "vllm" / "late.py").is_symlink()


def test_an_overlay_of_only_added_modules_still_serves_the_package(
    make_patch: MakePatch, package: Path, tmp_path: Path
) -> None:
    patch = make_patch(new_module(), body="x = 1\n")
    build_overlay([patch], "0.30.0", MemoryTree(), tmp_path / "out")
    root = build_farm(tmp_path / "out", package) / "vllm"
    assert (root / "v1").is_symlink() and (root / "__init__.py").is_symlink()


def test_an_overlay_of_another_build_is_refused(overlay: Path, package: Path) -> None:
    (package / "v1" / "worker" / "cpu.py").write_bytes(WORKER + b"\n")
    with pytest.raises(DeployError, match=r"IMAGE_CHANGED v1/worker/cpu\.py"):
        build_farm(overlay, package)


def test_an_installation_with_leftovers_is_refused(overlay: Path, package: Path) -> None:
    (package / "_overlay").mkdir()
    with pytest.raises(DeployError, match="RESIDUE"):
        build_farm(overlay, package)


def test_a_tampered_or_missing_overlay_is_not_served(overlay: Path, package: Path, tmp_path: Path) -> None:
    (overlay / "vllm" / "_overlay" / "demo.py").write_text("value = 2\n")
    with pytest.raises(DeployError, match="is not what was built"):
        build_farm(overlay, package)
    assert [path.name for path in overlay.parent.iterdir()] == ["demo"]
    with pytest.raises(DeployError, match="holds no overlay"):
        build_farm(tmp_path / "nowhere", package)
