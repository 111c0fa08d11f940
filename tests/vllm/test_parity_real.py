"""Parity of real engines: other topologies of the small model are the same model, a wrong slice of it is not."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from served import engine

from shardwright.connect.trees import InstalledTree
from shardwright.overlay.build import build_overlay
from shardwright.overlay.farm import build_farm
from shardwright.overlay.patch import read_patch
from shardwright.probes.edges import Edges
from shardwright.probes.journal import Journal
from shardwright.probes.parity.plan import quick_plan
from shardwright.probes.parity.report import compare
from shardwright.probes.parity.run import run_parity
from shardwright.probes.server import identify
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint

pytestmark = pytest.mark.vllm

PLAN = quick_plan(Edges(block=128, chunk=2048, max_len=2048))

Records = list[dict[str, Any]]


def record(endpoint: Endpoint, file: Path) -> Records:
    with Journal(file) as journal:
        report = run_parity(identify(endpoint, None), PLAN, journal)
    assert report.verdict == "PASS", report.to_json()
    return read_records(file)


@pytest.fixture(scope="module")
def one_worker(tiny_server: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Records:
    return record(tiny_server, tmp_path_factory.mktemp("parity") / "a.jsonl")


def test_an_engine_is_the_same_model_as_itself(one_worker: Records, tiny_server: Endpoint, tmp_path: Path) -> None:
    second = record(tiny_server, tmp_path / "a2.jsonl")
    report = compare(one_worker, second, second)
    assert report.verdict == "PASS", report.to_json()
    assert report.numbers["distance"]["mean_kl"] < 1e-6


def test_two_tensor_ranks_are_the_same_model(one_worker: Records, project_root: Path, tmp_path: Path) -> None:
    model = project_root / "configs/models/needle-tiny"
    with engine(model, tmp_path / "log", "--tensor-parallel-size", "2") as endpoint:
        report = compare(one_worker, record(endpoint, tmp_path / "b.jsonl"))
    assert report.verdict == "PASS", report.to_json()
    assert report.numbers["distance"]["mean_kl"] < 1e-4


def test_two_pipeline_stages_are_the_same_model(one_worker: Records, project_root: Path, tmp_path: Path) -> None:
    model = project_root / "configs/models/needle-tiny"
    tree = InstalledTree(sys.executable)
    build_overlay([read_patch(project_root / "patches/pp-cpu-eager")], tree.vllm_version, tree, tmp_path / "overlay")
    settings = {"PYTHONPATH": str(build_farm(tmp_path / "overlay", Path(tree.root)))}
    with engine(model, tmp_path / "log", "--pipeline-parallel-size", "2", settings=settings) as endpoint:
        report = compare(one_worker, record(endpoint, tmp_path / "b.jsonl"))
    assert report.verdict == "PASS", report.to_json()


def test_a_down_projection_sliced_in_the_wrong_order_is_another_model(
    one_worker: Records, project_root: Path, tmp_path: Path
) -> None:
    # What a loader does that gives rank 0 the columns of rank 1: it loads, it serves, it answers fluently.
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(project_root / "configs/models/needle-tiny", model)
    weights = load_file(model / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith("mlp.down_proj.weight"):
            weights[name] = tensor.roll(tensor.shape[1] // 2, dims=1).contiguous()
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with engine(model, tmp_path / "log") as endpoint:
        report = compare(one_worker, record(endpoint, tmp_path / "b.jsonl"))
    assert report.verdict == "FAIL"
    assert report.numbers["distance"]["mean_kl"] > 0.1
    assert os.fspath(model) not in str(report.to_json())
