from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning_samples import CALIBRATION, DENSE, GLM, plain_pages, write_config, write_layout

from shardwright.plan.kv_pool import PoolSettings, logged_tokens, longest_request, plan_pool, resident_requests
from shardwright.plan.layer_pages import LayerPages, layer_groups
from shardwright.plan.memory import MemorySources, StageMemory, even_cards
from shardwright.resolve.counts import parse_count

Plan = Callable[..., Any]


def split(text: str) -> str:
    return f"parallel.layer_partition={text}"


@pytest.mark.parametrize(
    ("partition", "measured", "stage"),
    [("39,39", 597_760, 1), ("41,37", 729_280, 0)],
)
def test_the_measured_pools_come_out_within_a_thousandth(
    project: Path, plan_json: Plan, partition: str, measured: int, stage: int
) -> None:
    write_config(project, GLM)
    write_layout(project)
    plan = plan_json("case", "--set", split(partition))
    assert plan["pool_tokens"] == pytest.approx(measured, rel=0.001)
    assert plan["bottleneck_stage"] == stage
    assert plan["basis"] == "calibrated"


@pytest.mark.parametrize(("partition", "predicted"), [("42,36", 665_024), ("40,38", 666_368)])
def test_predictions_nobody_has_measured_do_not_drift(
    project: Path, plan_json: Plan, partition: str, predicted: int
) -> None:
    write_config(project, GLM)
    write_layout(project)
    assert plan_json("case", "--set", split(partition))["pool_tokens"] == predicted


def test_one_stage_counts_the_mtp_layers_own_indexer(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(
        project,
        parallel={"tensor": 8, "pipeline": 1},
        serve={"max_model_len": 327680, "kv_cache_dtype": "fp8_ds_mla"},
        capacity={"calibration": {"partition": [78], "available_gib": [17.26]}},
    )
    plan = plan_json("case")
    assert plan["pool_tokens"] == pytest.approx(338_688, rel=0.001)
    (stage,) = plan["stages"]
    assert (stage["indexers"], stage["kv_bytes_per_token"], stage["attention_layers"]) == (22, 54_728, 79)


def test_tensor_parallelism_does_not_divide_a_latent_cache(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project)
    tokens = {plan_json("case", "--set", f"parallel.tensor={tp}")["pool_tokens"] for tp in (1, 4, 8)}
    assert len(tokens) == 1


def test_recompute_flips_orphans_into_indexers_and_transport_does_not(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project)
    flipped = plan_json("case", "--set", split("39,39"))["stages"][1]
    carried = plan_json("case", "--set", split("39,39"), "--set", "patches=[pp-index-transport]")["stages"][1]
    assert flipped["orphans"] == carried["orphans"] == [39, 40, 41]
    assert (flipped["indexers"], carried["indexers"]) == (13, 10)
    assert flipped["kv_bytes_per_token"] - carried["kv_bytes_per_token"] == 3 * 132


def test_transport_costs_its_buffer_on_the_receiving_stage_only(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project, patches=["pp-index-transport"])
    batch = "serve.max_num_batched_tokens=8192"
    with_buffer = plan_json("case", "--set", batch)["stages"]
    aligned = plan_json("case", "--set", batch, "--set", split("42,36"))["stages"]
    assert with_buffer[0]["available_gib"] == pytest.approx(21.95 - 2 * 1.3014)
    assert with_buffer[1]["available_gib"] == pytest.approx(15.56 + 2 * 1.3014 - 64 / 1024)
    assert aligned[1]["available_gib"] == pytest.approx(15.56 + 3 * 1.3014)


def test_the_buffer_is_not_counted_twice_where_the_calibrated_start_had_it(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(
        project, patches=["pp-index-transport"], capacity={"calibration": {**CALIBRATION, "boundary_buffer": True}}
    )
    assert plan_json("case")["stages"][1]["available_gib"] == pytest.approx(15.56 + 2 * 1.3014)


def test_the_plan_says_what_each_remedy_costs(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project)
    notes = {item["note"].split(":")[0]: item for item in plan_json("case")["remedies"]}
    assert notes["aligned split"]["partition"] == [42, 36]
    assert notes["aligned split"]["pool_tokens"] == 665_024
    remedies = " ".join(item["note"] for item in plan_json("case")["remedies"])
    assert "MiB of index rows" in remedies and "132 B per token" in remedies


def test_an_aligned_split_needs_no_remedy(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project)
    assert plan_json("case", "--set", split("42,36"))["remedies"] == []


def test_five_long_requests_stay_resident(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project)
    assert plan_json("case", "--request-tokens", "131328")["resident_requests"] == 5


def test_utilization_moves_every_stage_by_its_share(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project, capacity={"calibration": {**CALIBRATION, "gpu_memory_utilization": 0.95}})
    before = plan_json("case")["stages"]
    after = plan_json("case", "--set", "serve.gpu_memory_utilization=0.9")["stages"]
    for stage in (0, 1):
        assert before[stage]["available_gib"] - after[stage]["available_gib"] == pytest.approx(0.05 * 79.25, abs=1e-5)


def test_a_move_without_a_weight_is_unknown_not_free(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    calibration = {"partition": [39, 39], "available_gib": [21.95, 15.56]}
    write_layout(project, capacity={"calibration": calibration})
    assert plan_json("case", "--set", split("39,39"))["pool_tokens"] == pytest.approx(597_760, rel=0.001)
    moved = plan_json("case")
    assert moved["pool_tokens"] is None and "layer_gib" in moved["unknown"]


def test_a_calibration_of_another_model_is_not_used(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project, capacity={"calibration": {**CALIBRATION, "partition": [30, 31]}})
    plan = plan_json("case")
    assert plan["pool_tokens"] is None and "61 layers" in plan["unknown"]


def test_a_model_without_a_rule_is_inconclusive_not_guessed(project: Path, deploy: Callable[..., Any]) -> None:
    write_config(project, {**DENSE, "compress_ratios": [4, 128]})
    write_layout(project, speculative={"method": "none"}, patches=[])
    status, _, err = deploy("plan", "case", "--set", "parallel.layer_partition=24,24")
    assert status == 3 and "compress_ratios" in err and "--observed" in err


def test_a_split_that_cannot_be_used_is_said_not_planned(project: Path, deploy: Callable[..., Any]) -> None:
    write_config(project, GLM)
    write_layout(project)
    status, _, err = deploy("plan", "case", "--set", split("41,36"))
    assert status == 1 and "41,36" in err


def test_blocks_by_hand_and_bytes_by_hand_count(project: Path, plan_json: Plan) -> None:
    write_config(project, DENSE)
    base: dict[str, Any] = {"speculative": {"method": "none"}, "patches": [], "capacity": None}
    write_layout(project, parallel={"tensor": 1, "pipeline": 1}, **base)
    bytes_per_block = 48 * 2048 * 16
    plan = plan_json(
        "case", "--set", f"serve.kv_cache_memory_bytes={10 * bytes_per_block + 5}", "--set", "serve.kv_cache_dtype=auto"
    )
    assert (plan["basis"], plan["stages"][0]["blocks"]) == ("given", 10)
    plan = plan_json(
        "case",
        *("--set", f"serve.kv_cache_memory_bytes={10 * bytes_per_block}", "--set", "serve.kv_cache_dtype=auto"),
        *("--set", "serve.num_gpu_blocks_override=7"),
    )
    assert plan["pool_tokens"] == 7 * 16


def test_the_logged_size_follows_the_engines_rounding() -> None:
    pages = plain_pages(4)
    settings = PoolSettings(max_model_len=100)
    # 100 tokens take 7 blocks of 16: 1,000 blocks are 142.857 requests.
    assert logged_tokens(pages, 1000, settings) == int(1000 / 7 * 100)
    assert logged_tokens(pages, 1000, PoolSettings()) is None


def test_one_request_needs_the_null_block_too() -> None:
    pages = plain_pages(4)
    settings = PoolSettings(max_model_len=160)
    assert plan_pool((4,), pages, "no memory", settings).fits_one_request is None
    assert longest_request(10, pages, settings) == 144
    assert longest_request(11, pages, settings) == 160
    assert resident_requests(21, pages, settings, 160) == 2
    assert resident_requests(20, pages, settings, 160) == 1


def test_decode_context_parallelism_multiplies_the_pool(project: Path, plan_json: Plan) -> None:
    write_config(project, GLM)
    write_layout(project)
    plain = plan_json("case")
    shared = plan_json("case", "--set", "serve.decode_context_parallel_size=2")
    assert shared["pool_tokens"] == 2 * plain["pool_tokens"]
    assert shared["max_concurrency"] == pytest.approx(2 * plain["max_concurrency"])


def test_sliding_groups_are_as_large_as_the_rarer_kind() -> None:
    sliding = tuple((layer + 1) % 6 != 0 for layer in range(30))
    groups = layer_groups(sliding, 30)
    assert [len(group) for group in groups] == [5] * 6
    assert (0, 6, 12, 18, 24) in groups and (5, 11, 17, 23, 29) in groups


def test_nearly_even_kinds_take_the_larger_size() -> None:
    # 12 sliding and 13 full layers: padded to two groups of 13, not to three of 12.
    sliding = (*([True] * 12), *([False] * 13))
    assert sorted(len(group) for group in layer_groups(sliding, 25)) == [12, 13]


@pytest.mark.parametrize(
    ("full", "sliding", "sizes"), [(10, 20, [10, 10, 10]), (10, 15, [7, 8, 10]), (10, 14, [10, 14]), (0, 9, [9])]
)
def test_the_size_of_groups_turns_at_one_and_a_half(full: int, sliding: int, sizes: list[int]) -> None:
    groups = layer_groups((*([False] * full), *([True] * sliding)), full + sliding)
    assert sorted(len(group) for group in groups) == sizes


def given(pages: LayerPages, gib: float, stages: int = 1) -> StageMemory:
    return StageMemory(MemorySources(tensor=1, stages=stages, given_gib=gib), pages, None)


def test_a_mixed_pool_is_counted_in_requests_of_full_length() -> None:
    pages = plain_pages(12, tuple(layer % 2 == 0 for layer in range(12)), window=64)
    settings = PoolSettings(max_model_len=1600, in_flight_tokens=33)
    plan = plan_pool((12,), pages, given(pages, 1.0), settings)
    blocks = (1 << 30) // (6 * 2048 * 16)
    assert (plan.blocks, plan.request_blocks) == (blocks, 107)
    assert plan.pool_tokens == int(blocks / 107 * 1600)
    assert plan.stages[0].indexers == 0


def test_a_pool_of_windows_only_depends_on_the_length_too() -> None:
    pages = plain_pages(12, (True,) * 12, window=64)
    settings = PoolSettings(max_model_len=1600, in_flight_tokens=33)
    plan = plan_pool((12,), pages, given(pages, 1.0), settings)
    assert (plan.request_blocks, plan.pool_tokens) == (7, int((1 << 30) // (12 * 2048 * 16) / 7 * 1600))
    assert plan_pool((12,), pages, given(pages, 1.0), PoolSettings()).pool_tokens == 0


def test_no_memory_is_no_block_and_not_fewer() -> None:
    pages = plain_pages(4)
    plan = plan_pool((4,), pages, given(pages, -1.0), PoolSettings(max_model_len=16))
    assert (plan.blocks, plan.pool_tokens, plan.fits_one_request) == (0, 0, False)


def test_the_last_of_equal_stages_is_not_blamed() -> None:
    pages = plain_pages(4)
    assert plan_pool((2, 2), pages, given(pages, 1.0, stages=2), PoolSettings()).bottleneck_stage == 0


def test_overheads_of_another_shape_are_those_of_the_first_and_the_last_stage(project: Path, plan_json: Plan) -> None:
    write_layout(
        project,
        model={"path": "./absent", "facts": "glm-5.3-w4a16"},
        parallel={"tensor": 2, "pipeline": 4, "layer_partition": [22, 20, 20, 16]},
        patches=[],
        capacity={"calibration": {**CALIBRATION, "tensor": 4}},
    )
    plan = plan_json("case")
    assert plan["basis"] == "estimated"
    budget = 0.95 * 79.25
    rest = [budget - stage["available_gib"] - stage["weights_gib"] for stage in plan["stages"]]
    assert rest[0] == pytest.approx(rest[1]) == pytest.approx(rest[2])
    assert rest[0] == pytest.approx(budget - 21.95 - 47.85, abs=0.01)
    assert rest[3] == pytest.approx(budget - 15.56 - 52.98, abs=0.01)


def test_a_declared_overhead_is_taken_from_every_card(project: Path, plan_json: Plan) -> None:
    write_layout(
        project, model={"path": "./absent", "facts": "glm-5.3-w4a16"}, capacity={"overhead_gib": 8.0}, patches=[]
    )
    plan = plan_json("case", "--set", split("42,36"))
    assert plan["basis"] == "estimated"
    for stage in plan["stages"]:
        assert stage["available_gib"] == pytest.approx(0.95 * 79.25 - stage["weights_gib"] - 8.0, abs=1e-5)


def test_a_sliding_request_holds_its_window_and_what_is_in_flight() -> None:
    pages = plain_pages(12, tuple(layer % 2 == 0 for layer in range(12)), window=64)
    assert pages.request_blocks(1600, in_flight_tokens=33) == 100 + 6 + 1
    assert pages.request_blocks(32, in_flight_tokens=1000) == 2 + 2 + 1
    assert pages.block_bytes(0, 12) == 6 * 2048 * 16
    # Three of the six sliding and three of the six full layers lie on the first half.
    assert pages.block_bytes(0, 6) == 3 * 2048 * 16


def test_a_stage_shorter_than_the_run_of_orphans_has_no_more_of_them_than_layers(
    project: Path, plan_json: Plan
) -> None:
    write_config(project, GLM)
    write_layout(project, parallel={"tensor": 1, "pipeline": 3, "layer_partition": [39, 2, 37]}, capacity=None)
    stages = plan_json("case")["stages"]
    assert [stage["orphans"] for stage in stages] == [[], [39, 40], [41]]
    assert [stage["indexers"] for stage in stages] == [12, 2, 1 + 9 + 1]


def test_an_upper_bound_counts_no_overhead(project: Path, plan_json: Plan) -> None:
    write_layout(project, model={"path": "./absent", "facts": "glm-5.3-w4a16"}, capacity=None, patches=[])
    plan = plan_json("case", "--set", split("42,36"))
    assert plan["basis"] == "bound"
    for stage in plan["stages"]:
        assert stage["available_gib"] + stage["weights_gib"] == pytest.approx(0.95 * 79.25, abs=1e-5)


def test_cards_are_dealt_to_stages_in_order_and_the_smallest_counts() -> None:
    assert even_cards([24, 24, 16, 32], tensor=2, stages=2) == (24, 16)
    assert even_cards([24, 24, 16], tensor=2, stages=2) == ()
    assert even_cards([24, 16, 8], tensor=1, stages=2) == (24, 16)


@pytest.mark.parametrize(
    "change",
    ["gpu_memory_utilization=nan", "gpu_memory_utilization=much", "max_model_len=1.e400k", "block_size=x"],
)
def test_a_flag_that_does_not_read_is_a_usage_error_not_a_traceback(
    project: Path, deploy: Callable[..., Any], change: str
) -> None:
    write_config(project, GLM)
    write_layout(project)
    assert deploy("plan", "case", "--set", f"serve.{change}")[0] == 64


@pytest.mark.parametrize(("text", "expected"), [("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600)])
def test_counts_read_as_the_engine_reads_them(text: str, expected: int) -> None:
    assert parse_count(text) == expected
