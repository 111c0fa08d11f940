"""What the Docker engine can give: three ways to cards, and no guess where nobody answers or nobody needs to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright.connect import docker_sdk
from shardwright.connect.docker_sdk import DockerEngine, EngineInfo
from shardwright.connect.project import Project, shipped_data
from shardwright.facts import docker_host as docker_host_facts
from shardwright.facts import gather as gather_module
from shardwright.facts import nvml
from shardwright.facts.docker_host import DockerHost, docker_host, read_docker_host
from shardwright.facts.gather import gather_facts
from shardwright.facts.host import Cards, Gpu, Host, read_host
from shardwright.layout.load import load_layout

# Of `docker info`, as versions 20.10 and 28 answer.
OLD = {
    "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}},
    "DockerRootDir": "/srv/docker",
}
WITH_CDI = {
    **OLD,
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
    "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}, {"Source": "cdi", "ID": "nvidia.com/gpu=all"}],
}


class Client:
    def __init__(self, info: dict[str, Any]) -> None:
        self._info = info

    def info(self) -> dict[str, Any]:
        return self._info


def info_of(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> EngineInfo:
    monkeypatch.setattr(docker_sdk, "docker_client", lambda: Client(answer))
    return DockerEngine().info()


@pytest.mark.parametrize(
    ("answer", "has_hook", "has_nvidia"),
    [
        (OLD, False, False),
        (OLD, True, True),
        (WITH_CDI, False, True),
        ({**OLD, "Runtimes": {**OLD["Runtimes"], "nvidia": {}}}, False, True),  # type: ignore[dict-item]
        ({**OLD, "DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=0"}]}, False, False),
    ],
    ids=["none", "hook", "cdi", "runtime", "other cards"],
)
def test_cards_come_by_a_runtime_by_the_hook_or_by_cdi(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], has_hook: bool, has_nvidia: bool
) -> None:
    found = docker_host(info_of(monkeypatch, answer), has_hook=has_hook)
    assert ("nvidia" in found.runtimes) == has_nvidia
    assert "runc" in found.runtimes
    assert found.root == Path("/srv/docker")


def test_an_engine_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert read_docker_host() is None


CARD = Gpu("Card", "8.0", 80.0)
LAYOUT = """\
schema: shardwright/v1
name: demo
model: {path: org/model}
engine: {image: "engine:1", vllm: "0.30.0"}
"""


def host_of(monkeypatch: pytest.MonkeyPatch, project: Path, cards: Cards, more: str = "") -> tuple[Host, list[str]]:
    """The host's facts for a layout, and whom they were asked of."""
    asked: list[str] = []

    def docker() -> DockerHost:
        asked.append("docker")
        return DockerHost(("runc",), project)

    def listening(disks: Any, port: int | None, driver: str | None = None) -> Host:
        asked.append(f"port {port}")
        return read_host(disks, None, driver)

    monkeypatch.setattr(nvml, "read_cards", lambda: cards)
    monkeypatch.setattr(docker_host_facts, "read_docker_host", docker)
    monkeypatch.setattr(gather_module, "read_host", listening)
    file = project / "demo.yaml"
    file.write_text(LAYOUT + more)
    opened = Project(project, (project, shipped_data()))
    layout, _ = load_layout(str(file), opened, {})
    return gather_facts(layout, opened, host=True).host, asked


def test_docker_is_asked_where_there_are_cards_to_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host, asked = host_of(monkeypatch, tmp_path, Cards((CARD,), None, "580.1"))
    assert (host.runtimes, host.driver) == (("runc",), "580.1")
    assert "docker" in asked


@pytest.mark.parametrize(
    ("cards", "more"),
    [
        (Cards(), ""),
        (Cards(()), ""),
        (Cards((CARD,)), "runtime: local\n"),
        (Cards((CARD,)), "container: {tool: podman}\n"),
    ],
    ids=["unknown cards", "no cards", "no container", "another tool"],
)
def test_docker_is_not_asked_where_its_answer_would_say_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cards: Cards, more: str
) -> None:
    host, asked = host_of(monkeypatch, tmp_path, cards, more)
    assert host.runtimes == () and "docker" not in asked


@pytest.mark.parametrize(
    ("more", "port"),
    [("", 8000), ('container: {publish: "127.0.0.1:7:9"}\n', 7), ("container: {network: host}\n", 8000)],
)
def test_the_port_that_will_be_listened_on_is_the_one_that_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: str, port: int
) -> None:
    assert f"port {port}" in host_of(monkeypatch, tmp_path, Cards(), more)[1]


def test_with_the_hosts_network_the_engines_own_port_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    more = 'container: {network: host, publish: "127.0.0.1:7:9"}\n'
    assert "port 9" in host_of(monkeypatch, tmp_path, Cards(), more)[1]
