"""Situations that operators met, each with the number that the planner must give."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning_samples import write_config, write_layout

from shardwright.facts.model import IndexRule
from shardwright.plan.index_sharing import full_layers
from shardwright.plan.partition import default_partition

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "predict_cases.json").read_text())}

Plan = Callable[..., Any]


def config(model: dict[str, Any]) -> dict[str, Any]:
    """The case's model as a config.json."""
    rest = {key: value for key, value in model.items() if key not in ("arch", "kv_dtype")}
    return {"architectures": [model.get("arch", "")], "num_attention_heads": 32, **rest}


@pytest.mark.parametrize("split", sorted(CASES["C07"]["expected"]))
def test_the_engines_own_split_of_uneven_layers(split: str) -> None:
    layers, stages = (int(part) for part in split.split("/"))
    assert list(default_partition(layers, stages)) == CASES["C07"]["expected"][split]


def test_a_plan_without_a_hand_partition_uses_the_engines_split(project: Path, plan_json: Plan) -> None:
    write_config(project, {**config(CASES["C07"]["input"]["model"]), "kv_lora_rank": 512, "qk_rope_head_dim": 64})
    write_layout(
        project, parallel={"tensor": 8, "pipeline": 3}, speculative={"method": "none"}, patches=[], capacity=None
    )
    assert plan_json("case", "--set", "serve.kv_cache_dtype=auto")["partition"] == [20, 21, 20]


def test_each_stage_needs_its_own_layers_only(project: Path, plan_json: Plan) -> None:
    given, expected = CASES["C13"]["input"], CASES["C13"]["expected"]
    write_config(project, config(given["model"]))
    write_layout(
        project,
        hardware=None,
        engine={"image": "engine:dev", "vllm": given["vllm"]},
        parallel={"tensor": given["tp"], "pipeline": given["pp"], "layer_partition": given["partition"]},
        serve={"max_model_len": given["max_model_len"], "kv_cache_dtype": "bfloat16"},
        speculative={"method": "none"},
        patches=[],
        capacity={"stage_memory_gib": given["gpus"]},
    )
    plan = plan_json("case")
    assert [stage["needed_gib"] for stage in plan["stages"]] == [expected["stage0_gib"], expected["stage1_gib"]]
    assert plan["whole_model_gib"] == expected["whole_model_gib"]
    assert plan["pool_tokens"] is None and "weights" in plan["unknown"]


@pytest.mark.parametrize("split", sorted(CASES["C29"]["expected"]))
def test_orphans_of_each_split(project: Path, plan_json: Plan, split: str) -> None:
    write_config(project, config(CASES["C29"]["input"]["model"]))
    write_layout(project)
    stages = plan_json("case", "--set", f"parallel.layer_partition={split}")["stages"]
    assert [layer for stage in stages for layer in stage["orphans"]] == CASES["C29"]["expected"][split]


def test_the_sharing_formula_counts_from_zero() -> None:
    expected = CASES["C32"]["expected"]
    layers = full_layers(IndexRule(freq=4, offset=3), 78)
    assert len(layers) == expected["count"] and list(layers[:5]) == expected["first"]
    assert full_layers(IndexRule(freq=4), 78)[:4] == (0, 1, 5, 9)
    assert IndexRule().offset == expected["default_offset"]


def test_more_cards_hold_no_more_latent_cache(project: Path, plan_json: Plan) -> None:
    given, expected = CASES["C52"]["input"], CASES["C52"]["expected"]
    write_config(project, config(given["model"]))
    write_layout(
        project,
        parallel={"tensor": given["tp"], "pipeline": given["pp"]},
        serve={"max_model_len": 327680, "kv_cache_dtype": given["kv_cache_dtype"], "block_size": given["block_size"]},
        capacity={"calibration": {"partition": [78], "available_gib": [given["kv_gib_per_rank"]]}},
    )
    plan = plan_json("case")
    assert plan["stages"][0]["kv_bytes_per_token"] == expected["bytes_per_token"]
    assert plan["stages"][0]["kv_bytes_per_token"] * plan["block_tokens"] == expected["block_bytes"]
    assert plan["pool_tokens"] == expected["tokens"]
    assert plan["pool_tokens"] == pytest.approx(expected["measured"], rel=expected["tolerance"])


@pytest.mark.parametrize("split", ["39,39", "40,38", "41,37", "42,36"])
def test_a_rebalanced_pool(project: Path, plan_json: Plan, split: str) -> None:
    given, expected = CASES["C55"]["input"], CASES["C55"]["expected"]
    write_config(project, config(given["model"]))
    write_layout(
        project,
        patches=given["patches"],
        speculative={"method": given["spec"]["method"], "num_speculative_tokens": given["spec"]["k"]},
        capacity={
            "calibration": {
                "partition": [39, 39],
                "available_gib": given["kv_gib_at_39_39"],
                "layer_gib": given["moe_layer_gib_per_gpu"],
            }
        },
    )
    plan = plan_json("case", "--set", f"parallel.layer_partition={split}")
    assert plan["pool_tokens"] == expected[split]
    if split in expected["measured"]:
        assert plan["pool_tokens"] == pytest.approx(expected["measured"][split], rel=expected["tolerance"])
    if split == "41,37":
        assert f"stage {plan['bottleneck_stage']}" == expected["bottleneck_41_37"]
