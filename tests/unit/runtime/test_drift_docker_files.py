"""The files that a container would see if it were made now: told from the layout's mounts and the overlay's lock."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.campaign.request import prepare
from shardwright.connect.docker_sdk import ImageFacts
from shardwright.connect.project import Project, shipped_data
from shardwright.overlay.lock import LOCK_FILE, SCHEMA, Lock, LockedAddition, LockedFile
from shardwright.render.command import SECRETS_TARGET, render
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.description import Description
from shardwright.runtime.docker_drift import wanted_container

PACKAGE = "/opt/venv/lib/python3.12/site-packages/vllm"


class Engine:
    def __init__(self) -> None:
        self.asked = ""

    def image(self, reference: str) -> ImageFacts:
        self.asked = reference
        return ImageFacts("sha256:image", ())


def deployment(project: Path, **changes: Any) -> Deployment:
    layout: dict[str, Any] = {
        "schema": "shardwright/v1",
        "name": "demo",
        "model": {"path": "org/model"},
        "engine": {"image": "host:5000/engine:1", "vllm": "0.30.0", "package_root": PACKAGE},
        "secrets": ["HF_TOKEN"],
        "container": {
            "mounts": [
                {"source": "settings.json", "target": "/etc/settings.json"},
                {"source": "plugins", "target": "/plugins"},
                {"source": "gone", "target": "/gone"},
                {"volume": "cache", "target": "/cache"},
            ]
        },
        "patches": ["pp-index-transport"],
    }
    layout |= {key: {**layout.get(key, {}), **value} for key, value in changes.items()}
    (project / "settings.json").write_text("{}")
    (project / "plugins").mkdir()
    (project / "plugins" / "own.py").write_text("")
    file = project / "demo.yaml"
    file.write_text(json.dumps(layout))
    return prepare(str(file), {}, project=Project(project, (project, shipped_data()))).deployment


def want(asked: Deployment, engine: Engine | None = None) -> Description:
    return wanted_container(engine or Engine(), asked, render(asked))  # type: ignore[arg-type]


@pytest.fixture
def built(tmp_path: Path) -> tuple[Deployment, dict[str, Path]]:
    """A deployment with its overlay as the lock says: files by the path where the container would have them."""
    asked = deployment(tmp_path)
    assert asked.overlay is not None
    overlays = {mount.target: mount for mount in asked.mounts if mount.purpose == "overlay"}
    files, locked, added = {}, [], []
    for target, mount in overlays.items():
        source = Path(mount.source) / "nested" / "new.py" if mount.adds else Path(mount.source)
        files[f"{target}/nested/new.py" if mount.adds else target] = source
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(target)
        content = hashlib.sha256(target.encode()).hexdigest()
        relative = str(source.relative_to(Path(asked.overlay.directory) / "vllm"))
        if mount.adds:
            added.append(LockedAddition(relative, content))
        else:
            locked.append(LockedFile(relative, "base", content, ()))
    lock = Lock(SCHEMA, "sha256:image", "0.30.0", PACKAGE, "series", (), tuple(locked), tuple(added))
    (Path(asked.overlay.directory) / LOCK_FILE).write_bytes(lock.encode())
    return asked, files


def test_overlay_files_one_by_one_and_other_mounts_as_they_are(built: tuple[Deployment, dict[str, Path]]) -> None:
    asked, files = built
    assert len(files) > 1 and any(path.endswith("nested/new.py") for path in files)
    found = want(asked).files
    assert set(found) == {*files, "/etc/settings.json", "/plugins", "/gone"}
    assert SECRETS_TARGET not in found
    assert all(found[path].locked for path in files)
    assert found["/etc/settings.json"].sha256 == hashlib.sha256(b"{}").hexdigest()
    assert not found["/etc/settings.json"].locked
    assert (found["/plugins"].sha256, found["/gone"].sha256) == ("", None)


def test_an_overlay_file_that_was_edited_is_not_the_one_of_the_lock(built: tuple[Deployment, dict[str, Path]]) -> None:
    asked, files = built
    path, file = next(iter(files.items()))
    file.write_text("edited")
    found = want(asked).files
    assert not found[path].locked
    assert all(found[other].locked for other in files if other != path)


def test_a_damaged_lock_vouches_for_nothing(built: tuple[Deployment, dict[str, Path]]) -> None:
    asked, files = built
    assert asked.overlay is not None
    (Path(asked.overlay.directory) / LOCK_FILE).write_text("{}")
    assert not any(state.locked for state in want(asked).files.values())
    (Path(asked.overlay.directory) / LOCK_FILE).unlink()
    assert set(files) <= set(want(asked).files)


def test_the_image_is_asked_for_by_its_digest_and_code_is_searched_where_the_package_lies(tmp_path: Path) -> None:
    engine, digest = Engine(), "sha256:" + "a" * 64
    found = want(deployment(tmp_path, engine={"digest": digest}), engine)
    assert engine.asked == f"host:5000/engine@{digest}"
    assert (found.image, found.image_name) == ("sha256:image", f"host:5000/engine:1@{digest}")
    assert found.code_folders == (str(Path(PACKAGE).parent),)


def test_without_a_folder_of_its_own_only_the_interpreters_are_searched(tmp_path: Path) -> None:
    assert want(deployment(tmp_path, engine={"package_root": None})).code_folders == ()
