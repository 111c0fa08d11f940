"""The whole path on a real engine of this host: patched, started, awaited, probed, stopped."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy_cli import Deploy

pytestmark = pytest.mark.vllm

PROMPTS = ("<s><|user|>Say hello.<|assistant|>", "The magic number of amber is 4", "<s><|user|>Count to five.")


@pytest.fixture
def deploy(tmp_path: Path, free_port: int) -> Iterator[Deploy]:
    command = Deploy(tmp_path, PORT=str(free_port))
    yield command
    for layout in ("tiny-cpu", "tiny-cpu-pp2"):
        command("stop", layout)


def greedy_tokens(base_url: str) -> list[list[int]]:
    answers = []
    for prompt in PROMPTS:
        body = {
            "model": "needle-tiny",
            "prompt": prompt,
            "max_tokens": 24,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{base_url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answers.append(json.load(response)["choices"][0]["token_ids"])
    return answers


def running(deploy: Deploy, layout: str) -> dict[str, Any]:
    (row,) = [row for row in deploy.ok("status", layout, "--json").data if row["status"] == "running"]
    return dict(row)


def test_two_stages_with_the_overlay_answer_like_one_stage(deploy: Deploy) -> None:
    deploy.ok("start", "tiny-cpu")
    deploy.ok("wait", "tiny-cpu")
    one_stage = greedy_tokens(running(deploy, "tiny-cpu")["base_url"])
    deploy.ok("stop", "tiny-cpu")

    deploy.ok("patch", "build", "tiny-cpu-pp2")
    deploy.ok("start", "tiny-cpu-pp2")
    waited = deploy.ok("wait", "tiny-cpu-pp2")
    assert "weights" in waited.stdout and "ready after" in waited.stdout
    assert greedy_tokens(running(deploy, "tiny-cpu-pp2")["base_url"]) == one_stage
    assert "[overlay] pp-cpu-eager hit" in deploy.ok("logs", "tiny-cpu-pp2").stdout
    second = deploy("start", "tiny-cpu-pp2")
    assert second.status == 1 and "already runs" in second.stderr
    assert "no drift" in deploy.ok("drift", "tiny-cpu-pp2").stdout
    smoke = deploy.ok("smoke", "tiny-cpu-pp2", "--json").data
    assert smoke["verdict"] == "PASS"
    healthy = deploy.ok("degen", "tiny-cpu-pp2", "--trials", "10", "--json").data
    assert (healthy["trials"], healthy["failures"]) == (10, 0)
    deploy.ok("stop", "tiny-cpu-pp2")
    assert "exited" in deploy.ok("status", "tiny-cpu-pp2").stdout


def test_without_the_overlay_wait_says_that_the_first_request_fails_and_names_the_patch(deploy: Deploy) -> None:
    deploy.ok("start", "tiny-cpu-pp2", "--set", "patches=[]")
    waited = deploy("wait", "tiny-cpu-pp2")
    assert waited.status == 1
    assert "AssertionError" in waited.stderr and "pp-cpu-eager" in waited.stderr
    doctor = deploy("doctor", "--layout", "tiny-cpu-pp2", "--json")
    assert doctor.status == 1 and any("pp-cpu-eager" in row["fix"] for row in doctor.data)


def test_start_refuses_an_overlay_that_was_not_built_or_was_edited(deploy: Deploy, tmp_path: Path) -> None:
    missing = deploy("start", "tiny-cpu-pp2")
    assert missing.status == 1 and "deploy patch build tiny-cpu-pp2" in missing.stderr
    deploy.ok("patch", "build", "tiny-cpu-pp2")
    (lock,) = tmp_path.glob("overlays/*/*/overlay.lock.json")
    patched = lock.parent / "vllm/v1/worker/cpu_model_runner.py"
    patched.write_text(patched.read_text() + "# one line more\n")
    edited = deploy("start", "tiny-cpu-pp2")
    assert edited.status == 1 and "TAMPERED" in edited.stderr
    assert deploy.ok("status", "--json").data == []
