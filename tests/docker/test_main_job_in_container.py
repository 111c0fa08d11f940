"""The whole path in a container: a real vLLM with the overlay mounted over its own file, and the failure without it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy_cli import Deploy

pytestmark = pytest.mark.docker

PACKAGE = "/usr/local/lib/python3.11/dist-packages/vllm"
PATCHED = "v1/worker/cpu_model_runner.py"
SECRET = "planted-secret-5f3a9"


@pytest.fixture
def container_settings(engine_image: str) -> tuple[str, ...]:
    values = {
        "runtime": "docker",
        "engine.image": engine_image,
        "engine.package_root": PACKAGE,
        "container.shm_size": "1g",
        "secrets": "[HF_TOKEN]",
    }
    return tuple(word for key, value in values.items() for word in ("--set", f"{key}={value}"))


@pytest.fixture
def deploy(tmp_path: Path, free_port: int, container_settings: tuple[str, ...]) -> Iterator[Deploy]:
    command = Deploy(tmp_path, PORT=str(free_port), HF_TOKEN=SECRET)
    yield command
    command("stop", "tiny-cpu-pp2", "--timeout", "5")
    left = docker("ps", "--all", "--quiet", "--filter", f"label=shardwright.project={tmp_path}").split()
    if left:
        docker("rm", "--force", "--volumes", *left)


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout


def test_the_mounted_overlay_serves_and_leaves_no_secret_behind(
    deploy: Deploy, tmp_path: Path, container_settings: tuple[str, ...]
) -> None:
    unbuilt = deploy("start", "tiny-cpu-pp2", *container_settings)
    assert unbuilt.status == 1 and "deploy patch build" in unbuilt.stderr
    deploy.ok("patch", "build", "tiny-cpu-pp2", *container_settings)
    shown = deploy.ok("cmd", "tiny-cpu-pp2", "--json", *container_settings)
    started = deploy.ok("start", "tiny-cpu-pp2", *container_settings)
    deploy.ok("wait", "tiny-cpu-pp2")
    name = shown.data["instance"]
    assert name in started.stdout

    inspected = docker("inspect", name)
    (container,) = json.loads(inspected)
    assert container["Args"][-len(shown.data["argv"][-8:]) :] == shown.data["argv"][-8:], "what was shown is what runs"
    assert container["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert "no-new-privileges" in container["HostConfig"]["SecurityOpt"]
    assert not container["HostConfig"]["Privileged"]
    assert all(binding["HostIp"] == "127.0.0.1" for binding in container["NetworkSettings"]["Ports"]["8000/tcp"])
    (lock,) = tmp_path.glob("overlays/*/*/overlay.lock.json")
    host_file = lock.parent / "vllm" / PATCHED
    inside = docker("exec", name, "sha256sum", f"{PACKAGE}/{PATCHED}").split()[0]
    assert inside == hashlib.sha256(host_file.read_bytes()).hexdigest()
    environment = docker("exec", name, "sh", "-c", "tr '\\0' '\\n' </proc/1/environ")
    assert f"HF_TOKEN={SECRET}" in environment, "the engine was meant to get the secret"

    drift = deploy.ok("drift", "tiny-cpu-pp2", "--json", *container_settings)
    assert drift.data["differences"] == [] and SECRET not in drift.stdout + drift.stderr

    assert deploy.ok("smoke", "tiny-cpu-pp2", "--json").data["verdict"] == "PASS"
    log = deploy.ok("logs", "tiny-cpu-pp2").stdout
    assert "[overlay] pp-cpu-eager hit" in log
    assert SECRET not in inspected + log + shown.stdout + started.stdout + started.stderr
    for file in tmp_path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            assert SECRET.encode() not in file.read_bytes(), f"the secret lies in {file}"

    deploy.ok("stop", "tiny-cpu-pp2")
    assert deploy.ok("status", "tiny-cpu-pp2", "--json").data[0]["status"] == "exited"


def test_without_the_overlay_the_container_reports_ready_and_fails(
    deploy: Deploy, container_settings: tuple[str, ...]
) -> None:
    deploy.ok("start", "tiny-cpu-pp2", *container_settings, "--set", "patches=[]")
    waited = deploy("wait", "tiny-cpu-pp2")
    assert waited.status == 1
    assert "AssertionError" in waited.stderr and "pp-cpu-eager" in waited.stderr
