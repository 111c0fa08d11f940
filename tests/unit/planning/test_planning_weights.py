from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning_samples import DENSE, GLM, write_config, write_layout, write_shard

from shardwright.errors import DeployError
from shardwright.facts.checkpoint_weights import read_weights
from shardwright.facts.safetensors import read_headers
from shardwright.facts.weights import LayerBytes, WeightFacts
from shardwright.plan.weights import StageWeights

Tensors = dict[str, tuple[str, list[int], int]]
MIB = 1 << 20


def bf16(*shape: int) -> tuple[str, list[int], int]:
    size = 2
    for extent in shape:
        size *= extent
    return "BF16", list(shape), size


def glm_layer(index: int) -> Tensors:
    prefix = f"model.layers.{index}."
    return {
        f"{prefix}self_attn.q_a_proj.weight": bf16(2048, 6144),
        f"{prefix}self_attn.kv_a_proj_with_mqa.weight": bf16(576, 6144),
        f"{prefix}self_attn.indexer.wq_b.weight": bf16(4096, 2048),
        f"{prefix}mlp.gate.weight": bf16(256, 6144),
        f"{prefix}input_layernorm.weight": bf16(6144),
        f"{prefix}self_attn.o_proj.weight": bf16(6144, 16384),
        f"{prefix}mlp.experts.0.gate_proj.weight": bf16(2048, 6144),
    }


def test_what_every_rank_holds_is_told_from_what_is_sharded(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "model.safetensors",
        {
            **glm_layer(0),
            **glm_layer(1),
            "model.embed_tokens.weight": bf16(1000, 6144),
            "lm_head.weight": bf16(1000, 6144),
        },
    )
    weights = read_weights(tmp_path, "ckpt", 1)
    assert weights is not None
    layer = weights.layers[0]
    assert layer.replicated == 2 * (2048 * 6144 + 576 * 6144 + 4096 * 2048 + 256 * 6144 + 6144)
    assert layer.sharded == 2 * (6144 * 16384 + 2048 * 6144)
    assert weights.mtp == layer
    assert (weights.embedding, weights.head, weights.other) == (12_288_000, 12_288_000, 0)


def test_an_mtp_layers_own_embedding_and_head_are_the_targets(tmp_path: Path) -> None:
    tensors = {
        "model.layers.1.embed_tokens.weight": bf16(10, 8),
        "model.layers.1.shared_head.head.weight": bf16(10, 8),
        "model.layers.1.eh_proj.weight": bf16(8, 16),
        "model.embed_tokens.weight": bf16(10, 8),
    }
    write_shard(tmp_path / "model.safetensors", tensors)
    weights = read_weights(tmp_path, "ckpt", 1)
    assert weights is not None
    assert (weights.embedding, weights.head, weights.mtp.total) == (160, 0, 256)


def test_a_towers_layers_are_not_the_language_models(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"vision_tower.layers.0.mlp.weight": bf16(4, 4)})
    weights = read_weights(tmp_path, "ckpt", 1)
    assert weights is not None and weights.layers[0].total == 0 and weights.other == 32


def test_a_hundred_shards_cost_a_thousandth_of_their_bytes_and_little_time(tmp_path: Path) -> None:
    names = {}
    for shard in range(100):
        file = f"model-{shard:05}.safetensors"
        tensors = {
            f"model.layers.{shard % 78}.mlp.experts.{shard}{i}.up_proj.weight": bf16(2048, 640) for i in range(100)
        }
        write_shard(tmp_path / file, tensors)
        names.update(dict.fromkeys(tensors, file))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    started = time.process_time()
    sum(index * index for index in range(10_000_000))
    yardstick = time.process_time() - started
    started = time.process_time()
    weights = read_weights(tmp_path, "ckpt", 78)
    spent = time.process_time() - started
    assert weights is not None
    assert weights.total == 100 * 100 * 2048 * 640 * 2
    assert weights.read_bytes < 0.001 * weights.total
    assert spent < yardstick


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    with pytest.raises(DeployError, match=r"1 of 1 shards are missing.*one\.safetensors"):
        read_weights(tmp_path, "ckpt", 1)


def test_a_folder_without_safetensors_has_no_known_weights(tmp_path: Path) -> None:
    assert read_weights(tmp_path, "ckpt", 1) is None


@pytest.mark.parametrize(
    ("header", "data_bytes", "reason"),
    [
        ({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, 3, "file holds 3"),
        ({"a": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 4]}}, 4, "does not fit"),
        ({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [2, 6]}}, 6, "does not fit"),
        ({"a": {"dtype": "B17", "shape": [2], "data_offsets": [0, 4]}}, 4, "unknown dtype B17"),
        ({"a": {"dtype": "BF16", "shape": [2]}}, 4, "does not read"),
        ({"a": 7}, 4, "does not read"),
        ([], 0, "not a JSON object"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, header: Any, data_bytes: int, reason: str) -> None:
    encoded = json.dumps(header).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"\0" * data_bytes)
    with pytest.raises(DeployError, match=reason):
        read_headers(file, "x.safetensors")


@pytest.mark.parametrize(
    "content", [b"", b"abc", (10**9).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{]"]
)
def test_a_broken_header_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    with pytest.raises(DeployError, match="not a whole safetensors file"):
        read_headers(file, "x.safetensors")


def test_packed_and_byte_wide_dtypes_are_measured_in_bits(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.safetensors", {"a": ("F4", [6], 3), "b": ("F8_E8M0", [5], 5), "c": ("I32", [2, 2], 16)})
    assert [tensor.size_bytes for tensor in read_headers(tmp_path / "x.safetensors", "x").tensors] == [3, 5, 16]


FACTS = WeightFacts(
    "test",
    (LayerBytes(800, 50, 80), *[LayerBytes(4000, 50, 80)] * 3),
    LayerBytes(400, 60, 0),
    embedding=160,
    head=240,
    other=16,
)


def test_a_stage_has_what_its_place_in_the_pipeline_adds() -> None:
    weights = StageWeights(FACTS, tensor=8, kv_heads=4, drafts=True)
    layer = 4000 / 8 + 50 + 80 / 4
    assert weights.stage_bytes(0, 2) == 100 + 50 + 20 + layer + (160 + 16) / 8
    assert weights.stage_bytes(1, 2) == layer
    assert weights.stage_bytes(2, 4) == 2 * layer + 240 / 8 + 400 / 8 + 60 + 160 / 8
    assert weights.stage_bytes(0, 4) == 170 + 3 * layer + (160 + 16) / 8 + 240 / 8 + 110


def test_without_drafting_the_mtp_layers_are_not_built() -> None:
    weights = StageWeights(FACTS, tensor=8, kv_heads=4, drafts=False)
    assert weights.stage_bytes(3, 4) == 570 + 30


def test_a_tied_head_is_copied_to_a_last_stage_of_its_own() -> None:
    tied = WeightFacts("test", FACTS.layers, LayerBytes(), embedding=160, head=0, other=0)
    weights = StageWeights(tied, tensor=1, kv_heads=0, drafts=False)
    assert weights.stage_bytes(3, 4) == 4130 + 160
    assert weights.stage_bytes(0, 4) == 930 + 3 * 4130 + 160


def test_the_declared_sizes_give_the_measured_stage(project: Path, plan_json: Callable[..., Any]) -> None:
    write_layout(project, model={"path": "./absent", "facts": "glm-5.3-w4a16"})
    stages = plan_json("case", "--set", "parallel.layer_partition=39,39")["stages"]
    # 36 x 1,332.6 + 3 x 191 + 454 MiB, which the start's log confirms.
    assert stages[0]["weights_gib"] == pytest.approx(47.85, abs=0.01)


def test_a_layer_moved_by_the_weights_equals_the_measured_layer(project: Path, plan_json: Callable[..., Any]) -> None:
    calibration = {"partition": [39, 39], "available_gib": [21.95, 15.56]}
    write_layout(project, model={"path": "./absent", "facts": "glm-5.3-w4a16"}, capacity={"calibration": calibration})
    assert plan_json("case")["pool_tokens"] == pytest.approx(729_280, rel=0.001)


def refusals(deploy: Callable[..., Any], gate: str, *words: str) -> list[dict[str, Any]]:
    found = json.loads(deploy("check", "case", "--json", *words)[1])["findings"]
    return [finding for finding in found if finding["gate"] == gate]


def test_weights_that_fill_the_cards_are_refused(project: Path, deploy: Callable[..., Any]) -> None:
    write_layout(project, model={"path": "./absent", "facts": "glm-5.3-w4a16"}, capacity=None)
    assert refusals(deploy, "weights-fit") == []
    (finding,) = refusals(
        deploy, "weights-fit", "--set", "parallel.pipeline=1", "--set", "parallel.layer_partition=null"
    )
    assert finding["verdict"] == "reject"
    assert "100.4 GiB" in finding["message"] and "75.29" in finding["message"]
    assert "TP x PP of at least 6" in finding["fix"] and "stage" not in finding["message"]


def test_weights_that_are_not_known_refuse_nothing(project: Path, deploy: Callable[..., Any]) -> None:
    write_config(project, GLM)
    write_layout(project, capacity=None)
    assert refusals(deploy, "weights-fit", "--set", "parallel.pipeline=1") == []


def test_a_request_above_the_pool_is_refused_with_the_longest_that_fits(
    project: Path, deploy: Callable[..., Any]
) -> None:
    write_config(project, GLM)
    write_layout(project)
    assert refusals(deploy, "kv-pool") == []
    (finding,) = refusals(deploy, "kv-pool", "--set", "serve.max_model_len=729409")
    assert finding["verdict"] == "reject" and "MAX_MODEL_LEN=729344" in finding["fix"]
    assert refusals(deploy, "kv-pool", "--set", "serve.max_model_len=729344") == []


def test_an_estimate_refuses_nothing(project: Path, deploy: Callable[..., Any]) -> None:
    write_layout(project, model={"path": "./absent", "facts": "glm-5.3-w4a16"})
    words = ("--set", "parallel={tensor: 8, pipeline: 1, layer_partition: null}", "--set", "serve.max_model_len=352000")
    (finding,) = refusals(deploy, "kv-pool", *words)
    assert finding["verdict"] == "info" and "estimated" in finding["message"]


def test_an_upper_bound_refuses_what_can_never_fit(project: Path, deploy: Callable[..., Any]) -> None:
    write_layout(project, model={"path": "./absent", "facts": "glm-5.3-w4a16"}, capacity=None)
    (finding,) = refusals(deploy, "kv-pool", "--set", "serve.max_model_len=2000000")
    assert finding["verdict"] == "reject" and "at most" in finding["message"]
    assert refusals(deploy, "kv-pool") == []


def test_an_automatic_length_is_never_too_long(project: Path, deploy: Callable[..., Any]) -> None:
    write_config(project, GLM)
    write_layout(project)
    assert refusals(deploy, "kv-pool", "--set", "serve.max_model_len=auto") == []


def test_a_facts_file_with_headers_stands_in_for_the_checkpoint(project: Path, deploy: Callable[..., Any]) -> None:
    layer = {"dtype": "BF16", "shape": [40, 1 << 30]}
    facts = {
        "model": {**GLM, "num_hidden_layers": 2},
        "checkpoint": {"tensors": {f"model.layers.{index}.mlp.up_proj.weight": layer for index in range(2)}},
        "gpus": [{"cc": "8.0", "mem_gib": 80.0, "count": 2}],
    }
    (project / "facts.json").write_text(json.dumps(facts))
    write_layout(project, parallel={"tensor": 1, "pipeline": 2}, capacity=None, patches=[])
    found = refusals(deploy, "weights-fit", "--facts", "facts.json")
    assert [finding["verdict"] for finding in found] == ["reject", "reject"]
    facts["checkpoint"] = {"tensors": list(facts["checkpoint"]["tensors"])}
    (project / "facts.json").write_text(json.dumps(facts))
    assert refusals(deploy, "weights-fit", "--facts", "facts.json") == []


def plain_model_of_160_gib(project: Path, **serve: Any) -> None:
    """Two layers of 80 GiB in bfloat16, on two cards of 80 GiB."""
    layer = {"dtype": "BF16", "shape": [40, 1 << 30]}
    facts = {
        "model": {**DENSE, "num_hidden_layers": 2},
        "checkpoint": {"tensors": {f"model.layers.{index}.mlp.up_proj.weight": layer for index in range(2)}},
        "gpus": [{"cc": "8.0", "mem_gib": 80.0, "count": 2}],
    }
    (project / "facts.json").write_text(json.dumps(facts))
    parallel = {"tensor": 1, "pipeline": 2}
    write_layout(project, parallel=parallel, capacity=None, patches=[], speculative={"method": "none"}, serve=serve)


@pytest.mark.parametrize(
    ("serve", "refused"),
    [
        ({"cpu_offload_gb": 6}, 2),
        ({"cpu_offload_gb": 6.5}, 0),
        ({"cpu_offload_gb": 200}, 0),
        ({"quantization": "fp8"}, 0),
        ({"offload_group_size": 8}, 0),
        ({"cpu_offload_gb": 1, "cpu_offload_params": ["experts"]}, 0),
        ({"offload_group_size": 0}, 2),
    ],
)
def test_weights_that_stay_on_the_host_or_are_quantised_on_the_way_do_not_fill_a_card(
    project: Path, deploy: Callable[..., Any], serve: dict[str, Any], refused: int
) -> None:
    plain_model_of_160_gib(project, **serve)
    assert len(refusals(deploy, "weights-fit", "--facts", "facts.json")) == refused


def test_no_more_is_offloaded_than_the_layers_weigh() -> None:
    facts = WeightFacts("", (LayerBytes(8), LayerBytes(8)), LayerBytes(), embedding=4, head=0, other=0)
    for offloaded, expected in ((0, 10), (5, 5), (8, 2), (100, 2)):
        weights = StageWeights(facts, 2, 0, drafts=False, offloaded_bytes=offloaded)
        assert weights.stage_bytes(0, 2) == expected
    assert StageWeights(facts, 2, 0, drafts=False, offloaded_bytes=100).stage_bytes(1, 2) == 2
    assert StageWeights(facts, 1, 0, drafts=False, offloaded_bytes=100).stage_bytes(0, 1) == 4


def test_offloaded_weights_leave_room_for_the_cache(project: Path, deploy: Callable[..., Any]) -> None:
    plain_model_of_160_gib(project, cpu_offload_gb=16)
    status, out, err = deploy("plan", "case", "--facts", "facts.json", "--json")
    assert status == 0, err
    assert [stage["available_gib"] for stage in json.loads(out)["stages"]] == pytest.approx([0.92 * 80 - 64] * 2)


def test_an_offload_that_does_not_read_is_one_finding(project: Path, deploy: Callable[..., Any]) -> None:
    for text in ("much", "-1"):
        plain_model_of_160_gib(project, cpu_offload_gb=text)
        status, out, _ = deploy("check", "case", "--facts", "facts.json", "--json")
        assert status == 1
        assert "weights-fit" not in {row["gate"] for row in json.loads(out)["findings"]}


REFUSED = (
    "ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (4.25 GiB). Based on the available memory, the estimated "
    "maximum model length is 99744. Try increasing"
)


@pytest.mark.parametrize(("length", "refused"), [(99_999, False), (100_000, True), (120_000, True)])
def test_what_an_earlier_start_refused_is_refused_again(
    project: Path, deploy: Callable[..., Any], length: int, refused: bool
) -> None:
    (project / "facts.json").write_text(json.dumps({"model": GLM, "log": REFUSED}))
    write_layout(project, capacity=None)
    found = refusals(deploy, "kv-pool", "--facts", "facts.json", "--set", f"serve.max_model_len={length}")
    assert [finding["verdict"] for finding in found] == (["reject"] if refused else [])
    if refused:
        assert "4.26 GiB" in found[0]["message"] and "4.25 GiB" in found[0]["message"]
        assert "MAX_MODEL_LEN=99744" in found[0]["fix"]


def test_each_stage_is_held_against_its_own_cards(project: Path, deploy: Callable[..., Any]) -> None:
    write_layout(
        project, model={"path": "./absent", "facts": "glm-5.3-w4a16"}, capacity={"stage_memory_gib": [79.25, 48.0]}
    )
    (finding,) = refusals(deploy, "weights-fit")
    assert "each card of stage 1" in finding["message"] and "45.60 GiB" in finding["message"]


def test_the_cpu_engine_has_no_cards_to_fill(project: Path, deploy: Callable[..., Any]) -> None:
    write_layout(
        project,
        model={"path": "./absent", "facts": "glm-5.3-w4a16"},
        engine={"image": "engine:cpu", "vllm": "0.30.0", "platform": "cpu"},
        capacity={"stage_memory_gib": [1.0, 1.0]},
    )
    assert refusals(deploy, "weights-fit") == []
