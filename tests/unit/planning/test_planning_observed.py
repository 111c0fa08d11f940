from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning_samples import GLM, write_config, write_layout

from shardwright.plan.observed import observe


def usage(tag: str, consumed: float, activation: float, graphs: float, in_use: float) -> str:
    return (
        f"({tag} pid=7) INFO 11-30 21:32:25 [gpu_worker.py:867] Free memory on device (78.71/79.25 GiB) on startup. "
        f"Desired GPU memory utilization is (0.95, 75.29 GiB). Actual usage is {consumed} GiB for consumed memory "
        f"(weights + non-torch), {activation} GiB for peak activation, and {graphs} GiB for CUDAGraph memory. Replace "
        "gpu_memory_utilization config with `--kv-cache-memory=1` (1.0 GiB) to fit into requested memory, or "
        "`--kv-cache-memory=2` (2.0 GiB) to fully utilize gpu memory. Current kv cache memory in use is "
        f"{in_use} GiB."
    )


def boot(first: float = 21.95, pool: str = "597,760") -> list[str]:
    return [
        usage("Worker_PP0_TP0", 72.93 - first, 2.36, 0.76, first),
        usage("Worker_PP0_TP1", 72.93 - first, 2.36, 0.76, first),
        usage("Worker_PP1_TP0", 56.53, 3.20, 1.49, 15.56),
        f"(EngineCore pid=3) INFO [kv_cache_utils.py:2397] GPU KV cache size: {pool} tokens, Maximum concurrency for "
        "524,288 tokens per request: 1.14x",
    ]


def test_every_rank_is_read_with_its_stage() -> None:
    seen = observe(boot())
    assert [(rank.stage, rank.tensor_rank) for rank in seen.ranks] == [(0, 0), (0, 1), (1, 0)]
    assert (seen.stage_gib(0), seen.stage_gib(1), seen.stage_gib(2)) == (21.95, 15.56, None)
    assert (seen.pool_tokens, seen.max_model_len, seen.max_concurrency) == (597_760, 524_288, 1.14)
    last = seen.ranks[2]
    assert (last.consumed_gib, last.activation_gib, last.graphs_gib, last.utilization) == (56.53, 3.20, 1.49, 0.95)


def test_memory_in_use_after_shrinking_is_not_what_was_available() -> None:
    assert observe([usage("Worker_PP0_TP0", 50.98, 2.36, 0.76, 15.56)]).stage_gib(0) == 21.95
    assert observe([usage("Worker_PP0_TP0", 50.98, 2.36, 0.76, 21.90)]).stage_gib(0) == 21.95
    assert observe([usage("Worker_PP0_TP0", 50.98, 2.36, 0.76, 21.93)]).stage_gib(0) == 21.93


def test_the_cpu_engines_lines_are_read() -> None:
    seen = observe(
        [
            "(Worker_PP1 pid=9) INFO 11-30 [cpu_worker.py:271] Explicitly set (1.0/23.42) GiB for KV cache on node 0.",
            "INFO [kv_cache_utils.py:2397] CPU KV cache size: 524,288 tokens, Maximum concurrency for 2,048 tokens per "
            "request: 256.00x",
        ]
    )
    assert (seen.stage_gib(1), seen.pool_tokens) == (1.0, 524_288)


def test_of_two_starts_in_one_log_the_last_counts() -> None:
    assert observe([*boot(), *boot(20.0, "1,024")]).pool_tokens == 1024


def test_the_engines_own_refusal_is_read() -> None:
    seen = observe(
        [
            "ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (4.25 GiB). Based on the available memory, the "
            "estimated maximum model length is 99744. Try increasing"
        ]
    )
    refusal = seen.refusal
    assert refusal is not None
    assert (refusal.max_model_len, refusal.needed_gib, refusal.available_gib, refusal.longest) == (
        100_000,
        4.26,
        4.25,
        99_744,
    )


def test_an_ordinary_log_says_nothing() -> None:
    seen = observe(["INFO Loading weights took 3 seconds", "Worker_PP0 (hello)"])
    assert seen.ranks == () and seen.pool_tokens is None and seen.refusal is None


@pytest.fixture
def log(project: Path) -> Callable[[list[str]], str]:
    def write(lines: list[str]) -> str:
        (project / "engine.log").write_text("\n".join(lines))
        return "engine.log"

    return write


def test_a_log_as_predicted_is_no_finding(
    project: Path, deploy: Callable[..., Any], log: Callable[[list[str]], str]
) -> None:
    write_config(project, GLM)
    write_layout(project)
    status, out, _ = deploy(
        "plan", "case", "--observed", "--log", log(boot()), "--set", "parallel.layer_partition=39,39"
    )
    assert status == 0
    assert "FINDING" not in out
    cache = "tensor: 4, max_model_len: 524288, kv_cache_dtype: fp8_ds_mla"
    assert f"capacity: {{calibration: {{partition: [39,39], available_gib: [21.95, 15.56], {cache}}}}}" in out


def test_more_than_one_percent_off_is_a_finding(
    project: Path, deploy: Callable[..., Any], log: Callable[[list[str]], str]
) -> None:
    write_config(project, GLM)
    write_layout(project)
    words = ("plan", "case", "--log", log(boot(21.0)), "--set", "parallel.layer_partition=39,39", "--json")
    status, out, _ = deploy(*words)
    rows = {row["what"]: row for row in json.loads(out)["rows"]}
    assert status == 2
    assert rows["stage 0 GiB"]["finding"] and not rows["stage 1 GiB"]["finding"]
    assert rows["pool tokens"]["actual"] == 597_760


def test_what_has_no_rule_is_still_observed(
    project: Path, deploy: Callable[..., Any], log: Callable[[list[str]], str]
) -> None:
    write_config(project, {**GLM, "compress_ratios": [4]})
    write_layout(project)
    status, out, _ = deploy("plan", "case", "--observed", "--log", log(boot()))
    assert status == 0 and "597,760" in out and "unknown" in out


def test_a_log_without_a_word_on_memory_is_inconclusive(
    project: Path, deploy: Callable[..., Any], log: Callable[[list[str]], str]
) -> None:
    write_config(project, GLM)
    write_layout(project)
    status, _, err = deploy("plan", "case", "--observed", "--log", log(["starting"]))
    assert status == 3 and "says nothing" in err


def test_a_log_that_is_not_there_is_a_usage_error(project: Path, deploy: Callable[..., Any]) -> None:
    write_config(project, GLM)
    write_layout(project)
    assert deploy("plan", "case", "--log", "absent.log")[0] == 64
