"""The golden form: free of this host, and changed by every change that matters."""

from __future__ import annotations

import json
from pathlib import Path

from shardwright.campaign.request import Request
from shardwright.render.command import render
from shardwright.render.golden import golden_diff, golden_text
from tests.unit.helpers import GLM, LOCAL, request_for

TEXT = GLM + "parallel: {pipeline: 2, layer_partition: [41, 37]}\npatches: [pp-index-transport]\n"


def golden(request: Request) -> str:
    return golden_text(request.deployment, render(request.deployment), [str(base) for base in request.project.search])


def test_a_golden_file_does_not_name_this_host(tmp_path: Path):
    for text in (TEXT, LOCAL):
        first = golden(request_for(tmp_path / "here", text))
        assert first == golden(request_for(tmp_path / "over" / "there", text))
        assert str(tmp_path) not in first


def test_an_installed_package_below_the_project_is_taken_off_whole(tmp_path: Path):
    request = request_for(tmp_path, LOCAL)
    deep = f"{tmp_path}/venv/lib/_data"
    deployment = request.deployment
    text = golden_text(deployment, render(deployment), [str(tmp_path), deep])
    assert text == golden_text(deployment, render(deployment), [deep, str(tmp_path)])


def test_a_golden_file_keeps_order_one_token_per_line_and_every_pair(tmp_path: Path):
    request = request_for(tmp_path, TEXT)
    data = json.loads(golden(request))
    flags = [token for token in data["argv"] if token.startswith("--")]
    assert (
        flags.index("--tensor-parallel-size")
        < flags.index("--pipeline-parallel-size")
        < flags.index("--speculative-config")
    )
    assert data["env"]["VLLM_PP_LAYER_PARTITION"] == "41,37"
    assert set(data["env"]) == {pair.name for pair in request.deployment.env}
    assert data["secrets"] == ["HF_TOKEN", "VLLM_API_KEY"]
    assert "<digest8>" in golden(request)
    assert request.deployment.digest not in golden(request)


def test_a_diff_names_the_token_that_moved(tmp_path: Path):
    before, after = golden(request_for(tmp_path, TEXT)), golden(request_for(tmp_path, TEXT, {"MAX_MODEL_LEN": "7"}))
    lines = golden_diff(before, after, "demo")
    assert any(line.startswith("+") and '"--max-model-len"' in line for line in lines)
    assert golden_diff(before, before, "demo") == []
