"""Everybody reaches the engine that the docker command line talks to: DOCKER_HOST first, then the current context."""

from __future__ import annotations

from typing import Any

import docker
import pytest
from docker.errors import DockerException

from shardwright.connect import docker_sdk
from shardwright.connect.container_tree import ContainerTree
from shardwright.connect.docker_cli import CliResult
from shardwright.connect.docker_sdk import DockerEngine, docker_client
from shardwright.connect.trees import ImageTree
from shardwright.errors import DeployError


class ReachedError(Exception):
    """Which engine a client was made for."""


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> list[CliResult]:
    """The answer of `docker context inspect`; it is taken away when it is asked for."""
    answers = [CliResult(0, "unix:///of/the/context.sock", "")]
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(docker_sdk, "run_docker", lambda _argv: answers.pop())

    def client(base_url: str, *, use_ssh_client: bool) -> Any:
        raise ReachedError(base_url, use_ssh_client)

    def from_env(*, use_ssh_client: bool) -> Any:
        raise ReachedError("environment", use_ssh_client)

    monkeypatch.setattr(docker, "DockerClient", client)
    monkeypatch.setattr(docker, "from_env", from_env)
    return answers


@pytest.mark.parametrize(
    "reach",
    [docker_client, DockerEngine, lambda: ImageTree("engine:1"), lambda: ContainerTree("demo", "/vllm", "0.30.0")],
    ids=["client", "engine", "image tree", "container tree"],
)
def test_the_current_context_is_followed(reach: Any, context: list[CliResult]) -> None:
    with pytest.raises(ReachedError) as reached:
        reach()
    assert reached.value.args == ("unix:///of/the/context.sock", True)


def test_another_host_is_reached_by_the_ssh_of_the_command(
    context: list[CliResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    context[:] = [CliResult(0, "ssh://user@host", "")]
    with pytest.raises(ReachedError) as reached:
        docker_client()
    assert reached.value.args == ("ssh://user@host", True)
    monkeypatch.setenv("DOCKER_HOST", "ssh://user@host")
    with pytest.raises(ReachedError) as reached:
        docker_client()
    assert reached.value.args == ("environment", True)


@pytest.mark.parametrize("answer", [CliResult(1, "", "unknown command"), CliResult(0, "", "")])
def test_without_a_context_the_environment_decides(context: list[CliResult], answer: CliResult) -> None:
    context[:] = [answer]
    with pytest.raises(ReachedError, match="environment"):
        docker_client()


def test_docker_host_comes_before_the_context_and_asks_no_command(
    context: list[CliResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///of/the/environment.sock")
    with pytest.raises(ReachedError, match="environment"):
        docker_client()
    assert context, "the command line was not asked"


def test_an_engine_that_does_not_answer_is_one_clear_line(
    context: list[CliResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*, use_ssh_client: bool) -> None:
        raise DockerException("connection aborted\nsecond line")

    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    monkeypatch.setattr(docker, "from_env", fail)
    with pytest.raises(DeployError) as raised:
        docker_client()
    assert raised.value.what == "no Docker engine answers" and "DOCKER_HOST" in raised.value.fix
    assert raised.value.why == "unix:///nowhere.sock: connection aborted second line"


def test_why_no_engine_answers_is_said_in_the_words_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(DeployError) as raised:
        docker_client()
    assert raised.value.why == "unix:///nowhere.sock: No such file or directory"


def test_an_engine_behind_ssh_without_its_package_is_no_dead_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*, use_ssh_client: bool) -> None:
        raise DockerException("Install paramiko package to enable ssh:// support")

    monkeypatch.setenv("DOCKER_HOST", "ssh://user@host")
    monkeypatch.setattr(docker, "from_env", fail)
    with pytest.raises(DeployError, match="ssh://user@host needs a package") as raised:
        docker_client()
    assert raised.value.fix == "pip install 'docker[ssh]'"
