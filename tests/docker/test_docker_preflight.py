"""What the docker runtime refuses before it creates a container, and what it lets pass."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from quick_containers import Build, containers_of, docker

from shardwright.connect.docker_sdk import DockerEngine
from shardwright.errors import DeployError, ExitCode
from shardwright.render.command import render
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.docker import DockerRuntime

pytestmark = pytest.mark.docker


def refused(runtime: DockerRuntime, deployment: Deployment) -> DeployError:
    with pytest.raises(DeployError) as caught:
        runtime.preflight(deployment)
    assert caught.value.code == ExitCode.REFUSED
    assert "\n" not in caught.value.what
    return caught.value


@pytest.fixture(autouse=True)
def _nothing_is_created(project: Path) -> Iterator[None]:
    yield
    assert containers_of(project) == []


def test_looking_into_an_image_leaves_no_container(engine_image: str) -> None:
    def created() -> set[str]:
        return set(docker("ps", "--all", "--quiet", "--filter", "status=created").splitlines())

    before = created()
    with pytest.raises(ZeroDivisionError), DockerEngine().image_files(engine_image) as files:
        assert files.stat("/etc").is_directory
        during = created() - before
        raise ZeroDivisionError
    assert during
    assert not during & created()


def test_a_sound_deployment_passes(runtime: DockerRuntime, build: Build) -> None:
    runtime.preflight(build())


def test_absent_image(runtime: DockerRuntime, build: Build) -> None:
    error = refused(runtime, build(engine={"image": "no-such-image:1"}))
    assert error.what == "the image no-such-image:1 is not on this host"


def test_absent_digest(runtime: DockerRuntime, build: Build) -> None:
    digest = "sha256:" + "0" * 64
    error = refused(runtime, build(engine={"image": "host.example:5000/team/no-such-image:1", "digest": digest}))
    assert error.fix == f"docker pull host.example:5000/team/no-such-image@{digest}"


def test_another_build_under_the_same_tag(runtime: DockerRuntime, build: Build) -> None:
    digest = "sha256:" + "0" * 64
    assert f"is not {digest}" in refused(runtime, build(engine={"digest": digest})).what


def test_port_in_use(runtime: DockerRuntime, build: Build, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        error = refused(runtime, build())
    assert f"port {free_port} is in use by another process" in error.what
    assert "PORT" in error.fix


def test_port_published_by_another_container(
    runtime: DockerRuntime, build: Build, engine_image: str, free_port: int
) -> None:
    publish = f"127.0.0.1:{free_port}:8000"
    other = docker("run", "-d", "--pull", "never", "-p", publish, "--entrypoint", "sleep", engine_image, "600")
    try:
        name = docker("inspect", "--format", "{{.Name}}", other).lstrip("/")
        assert f"published by the container {name}" in refused(runtime, build()).what
    finally:
        docker("rm", "--force", other)


def test_an_address_that_this_host_does_not_have(runtime: DockerRuntime, build: Build, free_port: int) -> None:
    error = refused(runtime, build(container={"publish": f"192.0.2.1:{free_port}:8000"}))
    assert "no address 192.0.2.1" in error.what


def test_missing_mount_source(runtime: DockerRuntime, build: Build, project: Path) -> None:
    mounts = [{"source": "gone", "target": "/data"}, {"source": "gone-too", "target": "/data2"}]
    error = refused(runtime, build(container={"mounts": mounts}))
    assert f"mount source {project}/gone does not exist" in error.what
    assert "gone-too" in error.why


def test_missing_model(runtime: DockerRuntime, build: Build) -> None:
    error = refused(runtime, build(model={"path": "/no/such/model"}))
    assert "the model mount source /no/such/model does not exist" in error.what


def test_a_file_over_a_path_that_the_image_does_not_have(runtime: DockerRuntime, build: Build, project: Path) -> None:
    (project / "patched.py").write_text("")
    mounts = [{"source": "patched.py", "target": "/usr/local/lib/python3.11/dist-packages/vllm/no_such_file.py"}]
    error = refused(runtime, build(container={"mounts": mounts}))
    assert "the image has nothing at /usr/local/lib/python3.11/dist-packages/vllm/no_such_file.py" in error.what


@pytest.mark.parametrize("target", ["/usr/bin", "/bin"], ids=["itself", "behind a link"])
def test_a_file_over_a_folder_of_the_image(runtime: DockerRuntime, build: Build, project: Path, target: str) -> None:
    (project / "patched.py").write_text("")
    error = refused(runtime, build(container={"mounts": [{"source": "patched.py", "target": target}]}))
    assert error.what.startswith(f"{target} is a directory in the image")


@pytest.mark.parametrize("target", ["/usr/bin/python3", "/etc/hostname"], ids=["a link", "a file"])
def test_a_file_over_a_file_of_the_image_passes(
    runtime: DockerRuntime, build: Build, project: Path, target: str
) -> None:
    (project / "own.txt").write_text("")
    runtime.preflight(build(container={"mounts": [{"source": "own.txt", "target": target}]}))


def test_a_folder_that_is_new_to_the_image_passes(runtime: DockerRuntime, build: Build, project: Path) -> None:
    (project / "cache").mkdir()
    runtime.preflight(build(container={"mounts": [{"source": "cache", "target": "/new/cache", "readonly": False}]}))


def test_gpus_without_a_gpu_runtime(runtime: DockerRuntime, build: Build) -> None:
    if "nvidia" in docker("info", "--format", "{{json .Runtimes}}"):
        pytest.skip("this host has a GPU runtime")
    error = refused(runtime, build(container={"gpus": "all"}))
    assert "no GPU runtime" in error.what
    assert "nvidia-ctk" in error.fix


def test_no_engine_answers(build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployment = build()
    with monkeypatch.context() as patched:
        patched.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        error = refused(DockerRuntime(), deployment)
        assert error.what == "no Docker engine answers"
        with pytest.raises(DeployError, match="no Docker engine answers"):
            DockerRuntime().instances()


def test_no_docker_command(build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployment = build()
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        with pytest.raises(DeployError, match="docker is not installed"):
            DockerRuntime().start(deployment, render(deployment), {})
