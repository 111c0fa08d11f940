"""The engine files of a running container, as its mounts show them; nothing is executed in it."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from shardwright.errors import DeployError

_FOLDERS = ("models", "model_executor/models")
"""Read as a whole at the first question: model code is followed from file to file."""


class ContainerTree:
    """A SourceTree over one container. `root` is the folder of its vllm package.

    `identity` is the id of the image that the container was made from; `mounts` are its bind mounts, target to source.
    """

    def __init__(self, container: str, root: str, vllm_version: str) -> None:
        import docker
        from docker.errors import DockerException, NotFound

        try:
            self._container: Any = docker.from_env().containers.get(container)
        except NotFound:
            raise DeployError(f"the container {container} is gone", fix="deploy status") from None
        except DockerException as error:
            raise DeployError(f"the container {container} cannot be looked into: {error}"[:300]) from None
        attrs = self._container.attrs
        self.identity = str(attrs["Image"])
        self.mounts = {str(mount["Destination"]): str(mount.get("Source", "")) for mount in attrs.get("Mounts") or ()}
        self.root = root
        self.vllm_version = vllm_version
        self._files: dict[str, bytes] | None = None

    def read(self, relative: str) -> bytes:
        files = self._model_code()
        if relative in files:
            return files[relative]
        if any(relative.startswith(f"{folder}/") for folder in _FOLDERS):
            raise FileNotFoundError(relative)
        files.update(self._archive(relative, relative.rpartition("/")[0]))
        if relative not in files:
            raise FileNotFoundError(relative)
        return files[relative]

    def exists(self, relative: str) -> bool:
        try:
            self.read(relative)
        except FileNotFoundError:
            return any(name.startswith(f"{relative}/") for name in self._model_code())
        return True

    def _model_code(self) -> dict[str, bytes]:
        if self._files is None:
            self._files = {}
            for folder in _FOLDERS:
                self._files.update(self._archive(folder, folder.rpartition("/")[0]))
        return self._files

    def _archive(self, relative: str, parent: str) -> dict[str, bytes]:
        from docker.errors import DockerException, NotFound

        try:
            chunks, _status = self._container.get_archive(f"{self.root}/{relative}")
            data = b"".join(chunks)
        except NotFound:
            return {}
        except DockerException as error:
            raise DeployError(f"the files of container {self._container.name} cannot be read: {error}") from None
        found = {}
        with tarfile.open(fileobj=io.BytesIO(data)) as members:
            for member in members:
                if member.isfile() and member.name.endswith(".py"):
                    stream = members.extractfile(member)
                    found[f"{parent}/{member.name}" if parent else member.name] = stream.read() if stream else b""
        return found
