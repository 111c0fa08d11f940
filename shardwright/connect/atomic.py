"""Files and folders that appear whole or not at all: written beside their place, synced, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755

_SWAP_ATTEMPTS = 16
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def write_file(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Write `data` to `path`, replacing what is there in one step. The folder is made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


@contextmanager
def staged_directory(destination: Path) -> Iterator[Path]:
    """A new folder beside `destination` that takes its place when the block ends, and vanishes when it fails.

    All folders get mode 0755 whatever the umask. A folder that is already there is moved aside first and removed last;
    processes that hold files of it open keep them.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".tmp", dir=destination.parent))
    try:
        yield staged
        for directory, folders, _files in os.walk(staged):
            for name in folders:
                folder = Path(directory, name)
                if not folder.is_symlink():
                    folder.chmod(DIRECTORY_MODE)
            _sync_directory(Path(directory))
        staged.chmod(DIRECTORY_MODE)
        _swap(staged, destination)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    _sync_directory(destination.parent)


def _swap(staged: Path, destination: Path) -> None:
    # Another process may put its own folder there between our two renames, hence the loop.
    for _attempt in range(_SWAP_ATTEMPTS):
        aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".old", dir=destination.parent))
        try:
            if destination.exists() or destination.is_symlink():
                try:
                    destination.rename(aside / "old")
                except FileNotFoundError:
                    continue
            try:
                staged.rename(destination)
            except OSError as error:
                # Asking whether it is there now would be too late: a third process may have moved it aside again.
                if error.errno in _TAKEN:
                    continue
                if (aside / "old").exists():
                    (aside / "old").rename(destination)
                raise
            return
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"{destination} is being replaced by other processes again and again")


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
