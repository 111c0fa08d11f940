"""The overlay in a container, proven rung by rung: all four green on a real engine, and each fault with its verdict.

The engine is the tiny GLM with sparse attention on two stages whose boundary falls into an index-sharing group. What
goes wrong with mounts needs no engine: there a script that sleeps stands in for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from quick_containers import containers_of, docker

from shardwright.campaign.overlays import build_for
from shardwright.campaign.proof import prove_deployment
from shardwright.campaign.request import Request, prepare
from shardwright.connect.project import Project, shipped_data
from shardwright.overlay.prove import RUNGS, Proof
from shardwright.render.command import render
from tests.deploy_cli import Deploy

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "/usr/local/lib/python3.11/dist-packages/vllm"
MODEL_FILE = "model_executor/models/deepseek_v2.py"
SLEEP = ["python3", "-c", "import time; time.sleep(600)"]
HIT_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dsa") / "glm"
    subprocess.run([sys.executable, str(ROOT / "tests/vllm/dsa/checkpoint.py"), str(folder)], check=True)
    return folder


@pytest.fixture
def layout_file(project: Path, checkpoint: Path, engine_image: str, free_port: int) -> Callable[..., Path]:
    """Write the layout; `engine` adds to its engine section."""

    def write(**engine: Any) -> Path:
        layout = {
            "schema": "shardwright/v1",
            "name": "dsa",
            "runtime": "docker",
            "model": {"path": str(checkpoint)},
            "engine": {
                "image": engine_image,
                "vllm": "0.30.0",
                "platform": "cpu",
                "package_root": PACKAGE,
                "provides": {"attention_backends": ["CUSTOM"]},
                **engine,
            },
            "parallel": {"tensor": 1, "pipeline": 2, "layer_partition": [4, 8]},
            "serve": {
                "dtype": "float32",
                "enforce_eager": True,
                "max_model_len": 256,
                "max_num_seqs": 4,
                "skip_tokenizer_init": True,
            },
            "env": {
                "PYTHONPATH": "/plugins",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_HOST_IP": "127.0.0.1",
            },
            "container": {
                "publish": f"127.0.0.1:{free_port}:8000",
                "shm_size": "1g",
                "mounts": [{"source": str(ROOT / "tests" / "plugins"), "target": "/plugins"}],
            },
            "patches": ["pp-index-transport"],
        }
        file = project / "configs" / "layouts" / "dsa.yaml"
        file.write_text(json.dumps(layout))
        return file

    return write


@pytest.fixture
def asleep(project: Path, layout_file: Callable[..., Path]) -> Iterator[Callable[..., Request]]:
    """Build the overlay and run its container with a script that sleeps; `change` edits the argv before."""

    def started(change: Callable[[list[str]], list[str]] = list) -> Request:
        file = layout_file(entrypoint=SLEEP)
        request = prepare(str(file), {}, project=Project(project, (project, shipped_data())))
        build_for(request.deployment)
        subprocess.run(change(list(render(request.deployment).argv)), check=True, capture_output=True)
        return request

    yield started
    left = containers_of(project)
    if left:
        docker("rm", "--force", "--volumes", *left)


def without_engine(request: Request, monkeypatch: pytest.MonkeyPatch) -> Proof:
    """The proof of a container that only sleeps; its imports and classes are not asked for, that takes an engine."""
    monkeypatch.setattr("shardwright.campaign.proof._imports_and_reach", lambda *_arguments: iter(()))
    return prove_deployment(request)


def verdicts(proof: Proof, rung: str = "bytes") -> dict[str, str]:
    return {row.subject: row.verdict for row in proof.rows if row.rung == rung}


def test_all_four_rungs_are_green_on_a_real_engine(project: Path, layout_file: Callable[..., Path]) -> None:
    deploy, file = Deploy(project), str(layout_file())
    deploy.ok("patch", "build", file)
    deploy.ok("start", file)
    deadline = time.monotonic() + HIT_TIMEOUT_S
    while deploy.ok("logs", "dsa").stdout.count("[overlay] pp-index-transport hit") < 2:
        assert time.monotonic() < deadline, deploy("logs", "dsa").stdout[-3000:]
        time.sleep(2)
    proof = deploy.ok("patch", "prove", file, "--json", timeout_s=HIT_TIMEOUT_S).data
    assert proof["rungs"] == dict.fromkeys(RUNGS, "OK"), proof["rows"]
    assert proof["proven"] is True
    shown = deploy.ok("patch", "prove", file, timeout_s=HIT_TIMEOUT_S).stdout
    assert "stage 0" in shown and "GlmMoeDsaForCausalLM" in shown
    deploy("stop", "dsa", "--timeout", "5")


def test_a_sleeping_container_with_good_mounts_has_its_bytes_and_no_hit(
    asleep: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = without_engine(asleep(), monkeypatch)
    assert set(verdicts(proof).values()) == {"OK"} and MODEL_FILE in verdicts(proof)
    assert verdicts(proof, "hits") == {"stage 0": "NOT_LIVE", "stage 1": "NOT_LIVE"}
    assert not proof.proven


def test_a_file_that_is_not_mounted_is_named(asleep: Callable[..., Request], monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_mount(argv: list[str]) -> list[str]:
        (at,) = [index for index, token in enumerate(argv) if token.startswith("type=") and MODEL_FILE in token]
        return [*argv[: at - 1], *argv[at + 1 :]]

    found = verdicts(without_engine(asleep(drop_mount), monkeypatch))
    assert found.pop(MODEL_FILE) == "UNMOUNTED"
    assert set(found.values()) == {"OK"}


def test_a_host_file_that_was_edited_is_told_from_a_mount_that_was_left_behind(
    asleep: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asleep()
    file = Path(str(request.deployment.overlay and request.deployment.overlay.directory)) / "vllm" / MODEL_FILE
    built = file.read_bytes()
    file.write_bytes(built + b"# edited\n")
    assert verdicts(without_engine(request, monkeypatch))[MODEL_FILE] == "TAMPERED"
    replacement = file.with_suffix(".new")
    replacement.write_bytes(built)
    replacement.replace(file)
    found = verdicts(without_engine(request, monkeypatch))
    assert found[MODEL_FILE] == "STALE_MOUNT", "the container keeps the edited file's inode"


def test_a_container_of_another_image_is_found(
    asleep: Callable[..., Request], engine_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = docker("create", engine_image)
    other = docker("commit", "--change", "LABEL other=1", parent)
    try:
        request = asleep(lambda argv: [other if token == engine_image else token for token in argv])
        assert verdicts(without_engine(request, monkeypatch))["engine"] == "IMAGE_CHANGED"
        docker("rm", "--force", *containers_of(Path(request.deployment.project_root)))
    finally:
        docker("rm", parent)
        docker("rmi", "--force", other)
