"""The engine files of a running container, as its own processes see them.

They are sent by its `python3`. Docker's archive would not do: it mounts the sources anew, so it shows a replaced host
file that the container does not see, and shows nothing at all once the source of any mount is gone, as that of secrets
is.
"""

from __future__ import annotations

import io
import tarfile

from shardwright.connect.docker_sdk import DockerEngine
from shardwright.errors import DeployError

_FOLDERS = ("models", "model_executor/models")
"""Read as a whole at the first question: model code is followed from file to file."""

_SEND = """
import os, sys, tarfile
os.chdir(sys.argv[1])
keep = lambda member: member if member.isdir() or member.name.endswith(".py") else None
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", dereference=True) as archive:
    if os.path.exists(sys.argv[2]):
        archive.add(sys.argv[2], filter=keep)
"""


class ContainerTree:
    """A SourceTree over one container. `root` is the folder of its vllm package.

    `identity` is the id of the image that the container was made from; `mounts` are its bind mounts, target to source.
    """

    def __init__(self, container: str, root: str, vllm_version: str, engine: DockerEngine | None = None) -> None:
        self._engine = engine or DockerEngine()
        found = self._engine.container(container)
        if found is None:
            raise DeployError(f"the container {container} is gone", fix="deploy status")
        self._container = found
        self.identity = str(self._engine.inspect(found.id)["Image"])
        self.mounts = dict(found.mounts)
        self.root = root
        self.vllm_version = vllm_version
        self._files: dict[str, bytes] | None = None

    def read(self, relative: str) -> bytes:
        files = self._model_code()
        if relative in files:
            return files[relative]
        if any(relative.startswith(f"{folder}/") for folder in _FOLDERS):
            raise FileNotFoundError(relative)
        files.update(self._sent(relative))
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
                self._files.update(self._sent(folder))
        return self._files

    def _sent(self, relative: str) -> dict[str, bytes]:
        """The Python files at or below a path, by their path below the package."""
        answer = self._engine.execute(self._container.id, ["python3", "-I", "-c", _SEND, self.root, relative])
        if answer.status != 0:
            complaint = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise DeployError(
                f"the files of container {self._container.name} cannot be read: {complaint[:200]}",
                fix=f"docker exec {self._container.name} python3 -V",
            )
        found = {}
        with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as members:
            for member in members:
                stream = members.extractfile(member) if member.isfile() else None
                if stream is not None:
                    found[member.name] = stream.read()
        return found
