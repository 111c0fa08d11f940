"""Deployments of quick containers: the engine image with a small script instead of the server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quick_containers import SERVE_FOREVER, Build, containers_of, docker

from shardwright.campaign.request import prepare
from shardwright.connect.project import Project, shipped_data
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.docker import DockerRuntime


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project folder; its containers are gone at the end."""
    (tmp_path / "configs" / "layouts").mkdir(parents=True)
    yield tmp_path
    left = containers_of(tmp_path)
    if left:
        docker("rm", "--force", "--volumes", *left)


@pytest.fixture
def runtime(project: Path) -> DockerRuntime:
    return DockerRuntime(project=str(project))


@pytest.fixture
def build(project: Path, engine_image: str, free_port: int) -> Build:
    """Resolve a layout of this project: `build(script=..., container={...}, secrets=[...])`."""
    name = f"quick-{uuid.uuid4().hex[:8]}"

    def resolved(script: str = SERVE_FOREVER, **changes: Any) -> Deployment:
        layout: dict[str, Any] = {
            "schema": "shardwright/v1",
            "name": name,
            "runtime": "docker",
            "model": {"path": "some-org/some-model"},
            "engine": {
                "image": engine_image,
                "vllm": "0.30.0",
                "platform": "cpu",
                "entrypoint": ["python3", "-c", script],
            },
            "container": {"publish": f"127.0.0.1:{free_port}:8000"},
        }
        for key, value in changes.items():
            if isinstance(value, dict):
                layout[key] = {**layout.get(key, {}), **value}
            else:
                layout[key] = value
        file = project / "configs" / "layouts" / f"{name}.yaml"
        file.write_text(json.dumps(layout))
        return prepare(str(file), {}, project=Project(project, (project, shipped_data()))).deployment

    return resolved
