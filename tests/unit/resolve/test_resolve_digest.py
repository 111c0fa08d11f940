"""The digest changes with whatever decides what runs, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.helpers import BASE, request_for

LOCAL = """\
schema: shardwright/v1
name: demo
runtime: local
model: {path: models/m}
engine: {vllm: "0.30.0", platform: cpu, python: .venv/bin/python}
parallel: {pipeline: 2}
patches: [pp-cpu-eager]
env: {CACHE: null}
"""
DOCKER = """\
schema: shardwright/v1
name: demo
model: {path: models/m}
engine: {image: "engine:1", digest: "sha256:aa", vllm: "0.30.0"}
parallel: {tensor: 1, pipeline: 2, layer_partition: [1, 1]}
serve: {seed: 1}
env: {A: x}
secrets: [HF_TOKEN]
container: {gpus: all, mounts: [{source: data, target: /data}]}
patches: [pp-index-transport]
"""


def digest(root: Path, text: str) -> str:
    (root / "models" / "m").mkdir(parents=True, exist_ok=True)
    return request_for(root, text).deployment.digest


@pytest.mark.parametrize("text", [LOCAL, DOCKER], ids=["local", "docker"])
def test_the_digest_does_not_depend_on_where_the_project_lies(tmp_path: Path, text: str):
    assert digest(tmp_path / "here", text) == digest(tmp_path / "over" / "there", text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("engine:1", "engine:2"),
        ("sha256:aa", "sha256:bb"),
        ("tensor: 1", "tensor: 4"),
        ("[1, 1]", "[2, 1]"),
        ("seed: 1", "seed: 2"),
        ("{seed: 1}", "{seed: 1, dtype: float16}"),
        ("{A: x}", "{A: y}"),
        ("{A: x}", "{B: x}"),
        ("[HF_TOKEN]", "[HF_TOKEN, VLLM_API_KEY]"),
        ("gpus: all", "gpus: 2"),
        ("gpus: all", "gpus: all, ipc: host"),
        ("gpus: all", "gpus: all, shm_size: 1g"),
        ("gpus: all", "gpus: all, network: host"),
        ("gpus: all", 'gpus: all, publish: "127.0.0.1:8001:8000"'),
        ("gpus: all", "gpus: all, restart: always"),
        ("source: data", "source: data2"),
        ("target: /data", "target: /data2"),
        ("target: /data", "target: /data, readonly: false"),
        ("models/m", "models/n"),
        ("patches: [pp-index-transport]", "patches: [pp-index-recompute]"),
        ('vllm: "0.30.0"', 'vllm: "0.30.0", entrypoint: [python, serve]'),
        ('vllm: "0.30.0"', 'vllm: "0.30.0", entrypoint: []'),
        ('vllm: "0.30.0"', 'vllm: "0.30.0", package_root: /opt/vllm'),
    ],
)
def test_no_change_of_what_runs_keeps_the_digest(tmp_path: Path, old: str, new: str):
    assert old in DOCKER
    assert digest(tmp_path, DOCKER) != digest(tmp_path, DOCKER.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: demo", "name: demo\nstatus: ready"),
        ("name: demo", "name: demo\nmissing_proof: much"),
        ("gpus: all", "gpus: all, keep: 9"),
        ("gpus: all", "gpus: all, stop_timeout_s: 90"),
        ("secrets:", "# a comment\nsecrets:"),
        ("secrets:", "allow: [unverified-pp]\nsecrets:"),
        ("secrets:", "probes: {degen: {trials: 9}}\nsecrets:"),
    ],
)
def test_what_only_we_use_does_not_rename_a_running_engine(tmp_path: Path, old: str, new: str):
    assert digest(tmp_path, DOCKER) == digest(tmp_path, DOCKER.replace(old, new))


def test_a_changed_patch_body_changes_the_digest(tmp_path: Path):
    folder = tmp_path / "patches" / "own"
    folder.mkdir(parents=True)
    (folder / "patch.yaml").write_text(
        "id: own\ntitle: t\nwhy: w\nupstream: {status: never}\ninert_when: never\n"
        "edits: [{id: a, op: before, body: body.pyfrag, vllm: '>=0.30', module: vllm.x, symbol: f, find: y}]\n"
    )
    seen = set()
    for body in ("a = 1\n", "a = 2\n"):
        (folder / "body.pyfrag").write_text(body)
        seen.add(digest(tmp_path, BASE + "patches: [own]\n"))
    assert len(seen) == 2


def test_the_instance_carries_layout_and_digest(tmp_path: Path):
    deployment = request_for(tmp_path, BASE).deployment
    assert deployment.instance_name == f"demo-{deployment.digest[:8]}"
