"""A calibration of another cache format or length is exchanged for this one's workspace, and said to be another's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning_samples import CALIBRATION, DENSE, GLM, write_config, write_layout

from shardwright.facts.attention import attention_facts
from shardwright.plan.workspace import default_factor, prefill_workspace_bytes

Plan = Callable[..., Any]
Deploy = Callable[..., tuple[int, str, str]]
BOOT = {**CALIBRATION, "tensor": 4, "max_model_len": 524288, "kv_cache_dtype": "fp8_ds_mla"}
BF16 = {"max_model_len": 262144, "kv_cache_dtype": "bfloat16", "gpu_memory_utilization": 0.95}


def given(project: Path, calibration: dict[str, Any], **changes: Any) -> None:
    write_config(project, GLM)
    write_layout(project, capacity={"calibration": calibration}, **changes)


def test_the_measured_bfloat16_pool_comes_out_of_the_fp8_start(project: Path, plan_json: Plan) -> None:
    given(project, BOOT, serve=BF16)
    plan = plan_json("case")
    assert plan["pool_tokens"] == pytest.approx(458_560, rel=0.002)
    assert plan["basis"] == "converted"


def test_a_foreign_calibration_is_never_shown_as_measured(project: Path, deploy: Deploy) -> None:
    given(project, BOOT, serve=BF16)
    assert "converted: the calibrated start had another kv_cache_dtype" in deploy("plan", "case")[1]
    given(project, {**BOOT, "kv_cache_dtype": "bfloat16", "max_model_len": 262144}, serve=BF16)
    assert "converted" not in deploy("plan", "case")[1]


def test_without_the_starts_own_format_the_calibration_counts_as_it_is(project: Path, plan_json: Plan) -> None:
    given(project, CALIBRATION, serve=BF16)
    plan = plan_json("case")
    assert (plan["basis"], plan["pool_tokens"]) == ("calibrated", 425_536)


def test_a_longer_request_takes_its_workspace_from_the_pool(project: Path, plan_json: Plan) -> None:
    given(project, BOOT)
    usual = plan_json("case")
    longer = plan_json("case", "--set", "serve.max_model_len=724288")
    assert longer["basis"] == usual["basis"] == "calibrated"
    difference = usual["stages"][0]["available_gib"] - longer["stages"][0]["available_gib"]
    assert difference == pytest.approx(200_000 * 5 * 1152 / 2**30, abs=0.01)


def test_another_shape_takes_the_overheads_without_the_workspace(project: Path, plan_json: Plan) -> None:
    weights = {"replicated_mib": 51, "layers": [{"count": 78, "mib": 5177.8}], "embedding_mib": 1815, "head_mib": 1815}
    folder = project / "configs" / "models"
    folder.mkdir(parents=True)
    text = f"schema: shardwright/model-v1\nsource: test\nconfig: {GLM}\nweights: {weights}\n"
    (folder / "glm.yaml").write_text(text.replace("'", '"'))
    shape = {"parallel": {"tensor": 2, "pipeline": 4}, "speculative": {"method": "none"}, "patches": None}
    model = {"path": "/models/absent", "facts": "glm"}
    boot = {key: value for key, value in BOOT.items() if key != "layer_gib"}
    write_layout(project, model=model, capacity={"calibration": boot}, **shape)
    usual = plan_json("case")
    longer = plan_json("case", "--set", "serve.max_model_len=1048576")
    assert usual["basis"] == longer["basis"] == "estimated"
    difference = usual["stages"][1]["available_gib"] - longer["stages"][1]["available_gib"]
    assert difference == pytest.approx(524_288 * 5 * 1152 / 2**30, abs=0.01)


@pytest.mark.parametrize(
    ("version", "length", "factor"),
    [("0.30.0", 1_000_000, 5), ("0.32.0", 262_144, 5), ("0.32.0", 262_145, 2), ("0.33.0", None, 5)],
)
def test_long_requests_got_a_smaller_workspace_in_0_32(version: str, length: int | None, factor: int) -> None:
    assert default_factor(version, length) == factor


def test_the_factor_of_the_layout_counts(project: Path, plan_json: Plan) -> None:
    given(project, BOOT)
    factor = ("--set", "serve.attention_config.sparse_mla_prefill_workspace_factor=2")
    longer = ("--set", "serve.max_model_len=724288")
    usual, own = (plan_json("case", *factor, *more)["stages"][0]["available_gib"] for more in ((), longer))
    assert usual - own == pytest.approx(200_000 * 2 * 1152 / 2**30, abs=0.01)


def test_only_sparse_attention_has_the_workspace() -> None:
    sparse = attention_facts(GLM, 78, True)
    assert prefill_workspace_bytes(sparse, "fp8_ds_mla", 1000, 5) == 5 * 1000 * 1152
    assert prefill_workspace_bytes(sparse, "bfloat16", 1000, 5) == 40 * 1000 * 132
    assert prefill_workspace_bytes(sparse, "bfloat16", None, 5) == 0
    assert prefill_workspace_bytes(attention_facts(DENSE, 48, False), "bfloat16", 1000, 5) == 0
    assert prefill_workspace_bytes(None, "bfloat16", 1000, 5) == 0


@pytest.mark.parametrize(("length", "verdict"), [(430_000, None), (445_000, "info"), (470_000, "reject")])
def test_a_converted_pool_refuses_only_what_is_clearly_too_long(
    project: Path, deploy: Deploy, length: int, verdict: str | None
) -> None:
    given(project, BOOT, serve={**BF16, "max_model_len": length})
    findings = json.loads(deploy("check", "case", "--json")[1])["findings"]
    assert [finding["verdict"] for finding in findings if finding["gate"] == "kv-pool"] == (
        [verdict] if verdict else []
    )
