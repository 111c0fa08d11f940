"""Neighbours of the known situations: settings of the draft, values of flags, JSON flags given by parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run

LLAMA = {
    "num_hidden_layers": 48,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 32,
}
GLM4 = {**LLAMA, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_experts": 8}
MTP3 = {**GLM4, "num_nextn_predict_layers": 3}
OLD, NEW = {"vllm": "0.28.0"}, {"vllm": "0.33.0"}


def spec(**keys: Any) -> dict[str, Any]:
    return {"speculative": keys}


def serve(**flags: Any) -> dict[str, Any]:
    return {"serve": flags}


CASES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (
        {"parallel": {"tensor": 4}, **spec(method="eagle3", model="a/b", draft_tensor_parallel_size=1)},
        LLAMA,
        "accept",
        "",
    ),
    (
        {"parallel": {"tensor": 4}, **spec(method="eagle3", model="a/b", draft_tensor_parallel_size=2)},
        LLAMA,
        "reject",
        "TP=4",
    ),
    (spec(method="eagel3", model="a/b"), LLAMA, "reject", "did you mean eagle3"),
    ({"engine": NEW, **spec(method="medusa", model="a/b")}, LLAMA, "reject", "medusa"),
    (spec(method="dspark", xpress_topc=3), LLAMA, "reject", "xpress_topc"),
    ({"engine": NEW, **spec(method="dspark", xpress_topc=3)}, LLAMA, "accept", ""),
    (spec(method="mtp", prompt_lookup_max=3), GLM4, "warn", "means nothing to mtp"),
    ({"v2_runner": "0", **spec(method="ngram", prompt_lookup_max=3, prompt_lookup_min=5)}, LLAMA, "reject", "is above"),
    (spec(method="mtp", num_speculative_tokens=4), MTP3, "reject", "no multiple"),
    (spec(method="mtp", num_speculative_tokens=3), MTP3, "accept", ""),
    (spec(method="eagle", model="a/b", parallel_drafting=True), LLAMA, "warn", "parallel_drafting"),
    (spec(method="dflash", model="a/b", parallel_drafting=True), LLAMA, "accept", ""),
    ({"engine": OLD, "parallel": {"pipeline": 2}, **spec(method="glm4_moe_mtp")}, GLM4, "reject", "0.30"),
    ({"parallel": {"pipeline": 2}, **spec(method="glm4_moe_mtp")}, GLM4, "accept", ""),
    (serve(config="more.yaml"), LLAMA, "reject", "brings flags from a file"),
    (serve(max_num_batched_tokens=128, max_num_seqs=256), LLAMA, "reject", "is below max_num_seqs"),
    (serve(max_num_batched_tokens=256, max_num_seqs=256), LLAMA, "accept", ""),
    (serve(spec_model="a/b"), LLAMA, "reject", "speculative.model"),
    ({"parallel": {"tensor": 8}, **serve(**{"hf_overrides.num_attention_heads": 36})}, LLAMA, "reject", "36 attention"),
    (serve(**{"hf_overrides.a_b": 1, "hf_overrides": {"x": 1}}), LLAMA, "reject", "by parts"),
    (serve(**{"kernel_config.enable_flashinfer_autotune": False}), LLAMA, "accept", ""),
    (serve(kernel_config={"enable_flashinfer_autotun": False}), LLAMA, "reject", "did you mean"),
    (serve(max_num_seqs="abc", gpu_memory_utilization=1.5), LLAMA, "reject", "at most 1"),
    (serve(max_model_len="32k"), LLAMA, "accept", ""),
]


@pytest.mark.parametrize(("layout", "model", "outcome", "says"), CASES)
def test_a_neighbour_has_its_right_outcome(
    layout: dict[str, Any],
    model: dict[str, Any],
    outcome: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = {"image": "engine:1.0", "vllm": "0.30.0", **layout.get("engine", {})}
    base = {"schema": "shardwright/v1", "name": "case", "model": {"path": "/models/x"}, "container": {"ipc": "host"}}
    (tmp_path / "case.yaml").write_text(json.dumps({**base, **layout, "engine": engine}))
    (tmp_path / "facts.json").write_text(json.dumps({"model": model}))
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    run(["check", str(tmp_path / "case.yaml"), "--facts", str(tmp_path / "facts.json"), "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == outcome, printed.out
    assert says in printed.out
