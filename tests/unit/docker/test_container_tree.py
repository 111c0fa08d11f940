"""The engine files of a container, by the script that sends them: run here as it is sent there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwright.connect.container_tree import ContainerTree
from shardwright.connect.docker_sdk import ContainerFacts, Executed
from shardwright.errors import DeployError

FACTS = ContainerFacts("1", "demo", {}, "running", 0, 0, 1.0, 2.0, {"/vllm/a.py": "/overlay/a.py"})


class Engine:
    """A container whose programs run on this host."""

    def __init__(self, found: ContainerFacts | None = FACTS) -> None:
        self.found, self.runs = found, 0

    def container(self, name: str) -> ContainerFacts | None:
        return self.found if name == "demo" else None

    def inspect(self, _container_id: str) -> dict[str, Any]:
        return {"Image": "sha256:image"}

    def execute(self, _container_id: str, argv: list[str]) -> Executed:
        self.runs += 1
        done = subprocess.run([sys.executable, *argv[1:]], capture_output=True)
        return Executed(done.returncode, done.stdout, done.stderr.decode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {"models/glm.py": "glm", "models/nested/x.py": "x", "models/data.json": "{}", "version.py": "v", "a.so": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def tree(root: Path, engine: Engine) -> ContainerTree:
    return ContainerTree("demo", str(root), "0.30.0", engine)  # type: ignore[arg-type]


def test_model_code_comes_at_once_and_other_files_one_by_one(root: Path) -> None:
    engine = Engine()
    found = tree(root, engine)
    assert (found.identity, found.mounts) == ("sha256:image", {"/vllm/a.py": "/overlay/a.py"})
    assert (found.read("models/glm.py"), found.read("models/nested/x.py")) == (b"glm", b"x")
    assert engine.runs == 2, "one for each folder of model code, also one that is not there"
    assert found.read("version.py") == found.read("version.py") == b"v"
    assert engine.runs == 3


def test_what_is_not_there_or_is_no_python_is_not_found(root: Path) -> None:
    found = tree(root, Engine())
    for name in ("models/none.py", "models/data.json", "none.py", "none/x.py"):
        with pytest.raises(FileNotFoundError):
            found.read(name)
    assert found.exists("models/nested") and found.exists("version.py")
    assert not found.exists("models/none") and not found.exists("none.py")


def test_links_are_followed_as_the_interpreter_follows_them(root: Path) -> None:
    (root / "models" / "link.py").symlink_to(root / "version.py")
    assert tree(root, Engine()).read("models/link.py") == b"v"


def test_a_container_that_cannot_answer_is_not_taken_for_one_without_files(root: Path) -> None:
    with pytest.raises(DeployError, match="files of container demo cannot be read"):
        tree(root / "gone", Engine()).read("models/glm.py")
    with pytest.raises(DeployError, match="is gone"):
        tree(root, Engine(found=None))
