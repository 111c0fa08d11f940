"""Pristine engine files from where they lie: an installed package, a wheel, or an image that is never started."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import posixpath
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from shardwright.connect.docker_sdk import docker_client, in_clear_words
from shardwright.errors import DeployError

PACKAGE = "vllm"
VERSION_FILE = "_version.py"

_FIND_PACKAGE = (
    "import importlib.util as u, json; s = u.find_spec('vllm'); "
    "print(json.dumps(s.submodule_search_locations[0] if s and s.submodule_search_locations else None))"
)
_ANSWER_TIMEOUT_S = 60
_MAX_LINKS = 16


class SourceTree(Protocol):
    """The files of one engine build, addressed by their path below the `vllm` package."""

    @property
    def identity(self) -> str:
        """What tells this build from another: the image id, the wheel's record digest, the installed folder."""
        ...

    @property
    def root(self) -> str:
        """The folder of the `vllm` package inside the image, the wheel or this host."""
        ...

    @property
    def vllm_version(self) -> str: ...

    def read(self, relative: str) -> bytes:
        """The bytes of one file. FileNotFoundError when there is none."""
        ...

    def exists(self, relative: str) -> bool:
        """Whether a file or folder is there."""
        ...


class _Readable(Protocol):
    def read(self, relative: str) -> bytes: ...


class InstalledTree:
    """The package that one Python interpreter would import; vLLM itself is not imported."""

    def __init__(self, python: str) -> None:
        self.root = _ask_interpreter(python)
        self.identity = f"installed:{self.root}"
        self.vllm_version = _version(self, python)

    def read(self, relative: str) -> bytes:
        return Path(self.root, relative).read_bytes()

    def exists(self, relative: str) -> bool:
        return Path(self.root, relative).exists()


class WheelTree:
    """The package inside a `.whl` file, under whatever distribution name it was published."""

    root = PACKAGE

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DeployError(
                f"{path} cannot be read as a wheel: {getattr(error, 'strerror', None) or error}",
                fix="give the path of a .whl file",
            ) from None
        self._names = frozenset(self._archive.namelist())
        self.identity = f"wheel:{path.name}:{self._record_digest()}"
        self.vllm_version = _version(self, path.name)

    def read(self, relative: str) -> bytes:
        name = f"{PACKAGE}/{relative}"
        if name not in self._names:
            raise FileNotFoundError(relative)
        return self._member(name)

    def exists(self, relative: str) -> bool:
        name = f"{PACKAGE}/{relative}"
        return name in self._names or any(other.startswith(f"{name}/") for other in self._names)

    def _record_digest(self) -> str:
        # RECORD holds the digest of every file, so its own digest stands for the whole wheel.
        for name in sorted(self._names):
            if name.endswith(".dist-info/RECORD"):
                return hashlib.sha256(self._member(name)).hexdigest()
        raise DeployError(f"{self._archive.filename} has no RECORD, so it is not a wheel")

    def _member(self, name: str) -> bytes:
        try:
            return self._archive.read(name)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DeployError(
                f"{self._archive.filename} is damaged: {name}: {error}", fix="download the wheel again"
            ) from None


class ImageTree:
    """The package inside a local image, read from containers that are created, never started, and always removed.

    Only the folder is asked of the image's own `python3`, in a throw-away run without network. `digest` (sha256:…),
    where given, must be the image's own. `client` is a Docker SDK client, by default of the command line's engine.
    """

    def __init__(self, image: str, digest: str | None = None, client: Any = None) -> None:
        self._image = image
        self._client = client or docker_client()
        self.identity = self._pinned_id(digest)
        self._read: dict[str, bytes | None] = {}
        self.root = self._package_root()
        self.vllm_version = _version(self, image)

    def read(self, relative: str) -> bytes:
        if relative not in self._read:
            self._read[relative] = self._fetch(posixpath.join(self.root, relative))
        content = self._read[relative]
        if content is None:
            raise FileNotFoundError(relative)
        return content

    def exists(self, relative: str) -> bool:
        with self._container() as container:
            return self._archive(container, posixpath.join(self.root, relative)) is not None

    def _pinned_id(self, digest: str | None) -> str:
        from docker.errors import ImageNotFound

        with in_clear_words():
            try:
                image = self._client.images.get(self._image)
            except ImageNotFound:
                raise DeployError(
                    f"image {self._image} is not on this host",
                    why="patches are built from the files that the image really has",
                    fix=f"docker pull {self._image}",
                ) from None
        published = {str(name).rpartition("@")[2] for name in image.attrs.get("RepoDigests") or ()}
        if digest is not None and digest not in published | {str(image.id)}:
            raise DeployError(
                f"image {self._image} on this host is not {digest}",
                why=f"it is {', '.join(sorted(published)) or image.id}; its files may differ from the checked ones",
                fix=f"docker pull {self._image.partition('@')[0]}@{digest}, or correct engine.digest in the layout",
            )
        return str(image.id)

    def _package_root(self) -> str:
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            with self._container(entrypoint=["python3"], command=["-c", _FIND_PACKAGE]) as container:
                container.start()
                status = container.wait(timeout=_ANSWER_TIMEOUT_S)["StatusCode"]
                answer = container.logs(stdout=True, stderr=False)
                complaint = container.logs(stdout=False, stderr=True)
        except (DockerException, RequestException) as error:
            raise DeployError(
                f"image {self._image} does not say where its vllm package lies: {_last_line(str(error))}",
                fix=f"docker run --rm --network none --entrypoint python3 {self._image} -V",
            ) from None
        if status != 0:
            raise DeployError(
                f"python3 in image {self._image} failed: {_last_line(complaint.decode(errors='replace'))}",
                fix=f"docker run --rm --network none --entrypoint python3 {self._image} -V",
            )
        return _package_root(answer.decode(errors="replace"), f"image {self._image}")

    @contextmanager
    def _container(self, **settings: Any) -> Iterator[Any]:
        settings = {"entrypoint": ["true"], "network_mode": "none", **settings}
        with in_clear_words():
            container = self._client.containers.create(self.identity, **settings)
        try:
            yield container
        finally:
            with in_clear_words():
                container.remove(force=True, v=True)

    def _fetch(self, path: str) -> bytes | None:
        with self._container() as container:
            for _hop in range(_MAX_LINKS):
                archive = self._archive(container, path)
                if archive is None:
                    return None
                with tarfile.open(fileobj=io.BytesIO(archive)) as members:
                    member = members.next()
                    if member is None:
                        return None
                    if member.issym():
                        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
                        continue
                    file = members.extractfile(member)
                    return file.read() if file is not None else None
        raise DeployError(f"{path} in image {self._image} is a circle of links")

    def _archive(self, container: Any, path: str) -> bytes | None:
        from docker.errors import NotFound

        with in_clear_words():
            try:
                chunks, _status = container.get_archive(path)
                return b"".join(chunks)
            except NotFound:
                return None


def _ask_interpreter(python: str) -> str:
    # A link farm on PYTHONPATH or a folder named vllm in the working directory must not be taken for the installation.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if os.sep in python:
        python = str(Path(python).absolute())
    try:
        answer = subprocess.run(
            [python, "-c", _FIND_PACKAGE],
            capture_output=True,
            text=True,
            cwd="/",
            env=environment,
            timeout=_ANSWER_TIMEOUT_S,
            check=True,
        )
    except OSError as error:
        raise DeployError(
            f"{python} cannot be run: {error.strerror}",
            fix="name a Python with vLLM: engine.python in the layout, or --python",
        ) from None
    except subprocess.TimeoutExpired:
        raise DeployError(f"{python} gave no answer within {_ANSWER_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        raise DeployError(f"{python} failed to look for vLLM: {_last_line(error.stderr)}") from None
    return _package_root(answer.stdout, python)


def _package_root(answer: str, where: str) -> str:
    try:
        root = json.loads(answer)
    except ValueError:
        raise DeployError(f"{where} gave no usable answer: {_last_line(answer)}") from None
    if not isinstance(root, str) or not root.startswith("/"):
        raise DeployError(
            f"{where} has no vllm package",
            why="patches are built from the engine's own files",
            fix="install vLLM there, or name another engine in the layout",
        )
    return root


def _version(tree: _Readable, where: str) -> str:
    try:
        module = ast.parse(tree.read(VERSION_FILE))
    except (OSError, SyntaxError, ValueError):
        module = ast.Module([], [])
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if names & {"__version__", "version"}:
                return node.value.value
    raise DeployError(
        f"{where} does not say which vLLM it is: {PACKAGE}/{VERSION_FILE} has no version",
        why="a patch is placed by the engine's version",
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:200] if lines else "no message"
