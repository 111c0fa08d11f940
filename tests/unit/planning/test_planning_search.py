from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning_samples import DENSE, GLM, write_config, write_layout, write_shard

from shardwright.plan.search import Candidate, SearchLimits, search_partitions


class Problem:
    """A random instance: unequal memory per stage, layers of unequal weight, orphan runs, an MTP layer at the end."""

    def __init__(self, seed: int, layers: int, stages: int) -> None:
        rng = random.Random(seed)
        self.layers, self.stages = layers, stages
        self.memory = [rng.randrange(400, 900) for _ in range(stages)]
        self.weight = [rng.randrange(5, 40) for _ in range(layers)]
        self.full = [layer == 0 or rng.random() < 0.4 for layer in range(layers)]
        self.extra = rng.choice([0.0, 1.0, 3.5])
        every = rng.random() < 0.5
        self.cuts = frozenset(layer for layer in range(1, layers) if every or self.full[layer])
        self.limits = SearchLimits(self.cuts, self.extra, rng.choice([1.2, 1.5, 3.0]))

    def orphans(self, start: int, end: int) -> int:
        return next((layer - start for layer in range(start, end) if self.full[layer]), end - start)

    def blocks(self, stage: int, start: int, end: int) -> int:
        free = self.memory[stage] - sum(self.weight[start:end])
        return max(0, free) // (2 * (end - start) + self.orphans(start, end))

    def brute_force(self) -> list[Candidate]:
        found = []
        for inner in itertools.combinations(sorted(self.cuts), self.stages - 1):
            edges = (0, *inner, self.layers)
            spans = list(itertools.pairwise(edges))
            compute = [end - start + (self.extra if end == self.layers else 0) for start, end in spans]
            cap = self.limits.max_imbalance * (self.layers + self.extra) / self.stages
            blocks = min(self.blocks(stage, start, end) for stage, (start, end) in enumerate(spans))
            if blocks > 0 and max(compute) <= cap:
                orphans = sum(self.orphans(start, end) for start, end in spans)
                partition = tuple(end - start for start, end in spans)
                found.append(Candidate(partition, blocks, max(compute), orphans))
        return sorted(found, key=lambda item: (-item.blocks, item.slowest_layers, item.orphans, item.partition))

    def search(self, top: int) -> tuple[Candidate, ...]:
        return search_partitions(self.layers, self.stages, self.blocks, self.orphans, self.limits, top)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_search_is_exact(stages: int) -> None:
    solved = 0
    for seed in range(60):
        problem = Problem(seed * 7 + stages, layers=14 + seed % 5, stages=stages)
        expected, found = problem.brute_force(), problem.search(top=5)
        assert bool(found) == bool(expected)
        if not expected:
            continue
        solved += 1
        best, wanted = found[0], expected[0]
        assert (best.blocks, best.slowest_layers, best.orphans) == (
            wanted.blocks,
            wanted.slowest_layers,
            wanted.orphans,
        )
        assert [item.blocks for item in found] == [item.blocks for item in expected[:5]]
        assert all(item in expected for item in found)
    assert solved > 15


def test_a_large_search_costs_less_than_a_second_of_this_machine() -> None:
    started = time.process_time()
    sum(index * index for index in range(10_000_000))
    yardstick = time.process_time() - started
    slowest = 0.0
    for layers, stages in ((78, 8), (92, 16), (120, 16)):
        started = time.process_time()
        assert search_partitions(
            layers,
            stages,
            lambda stage, start, end: max(0, (20_000 + stage % 3 * 500) - 90 * (end - start)) // (end - start),
            lambda start, end: 0,
            SearchLimits(frozenset(range(1, layers)), 4.0),
        )
        slowest = max(slowest, time.process_time() - started)
    assert slowest < 1.5 * yardstick


Search = Callable[..., Any]


@pytest.fixture
def search(plan_json: Callable[..., Any]) -> Search:
    return lambda *words: plan_json("search", *words)


@pytest.mark.parametrize(
    ("patches", "partition", "orphans", "compute"),
    [
        (["pp-index-transport"], [41, 37], [41], [41, 40]),
        (["pp-index-recompute"], [41, 37], [41], [41, 40]),
        ([], [42, 36], [], [42, 39]),
    ],
)
def test_glm_on_eight_cards_finds_its_split_alone(
    project: Path, search: Search, patches: list[str], partition: list[int], orphans: list[int], compute: list[int]
) -> None:
    write_config(project, GLM)
    write_layout(project, patches=patches)
    found = search("case", "--pp", "2")
    assert found[0]["partition"] == partition
    assert found[0]["orphans"] == orphans
    assert found[0]["compute_layers"] == compute
    assert found[0]["bottleneck_stage"] == 0
    pools = [item["pool_tokens"] for item in found]
    assert pools == sorted(pools, reverse=True)
    assert len({tuple(item["partition"]) for item in found}) == len(found)


def test_without_a_covering_patch_no_split_has_orphans(project: Path, search: Search) -> None:
    write_config(project, GLM)
    write_layout(project, patches=[])
    assert all(item["orphans"] == [] for item in search("case", "--pp", "2"))


def test_the_winner_is_explained_by_its_neighbours(project: Path, deploy: Callable[..., Any]) -> None:
    write_config(project, GLM)
    write_layout(project, patches=[])
    status, out, _ = deploy("plan", "search", "case", "--pp", "2")
    assert status == 0
    assert "42,36 holds most: stage 0 bounds it" in out
    assert "41,37 would hold" in out and "orphan layers that nothing covers" in out


def dense_checkpoint(project: Path, layer_mib: int) -> None:
    folder = write_config(project, DENSE)
    layer = layer_mib << 19
    tensors = {f"model.layers.{index}.mlp.up_proj.weight": ("BF16", [layer], layer * 2) for index in range(48)}
    write_shard(folder / "model.safetensors", tensors)


def test_unequal_cards_get_unequal_stages(project: Path, search: Search) -> None:
    dense_checkpoint(project, layer_mib=512)
    write_layout(
        project,
        hardware={"gpus": 2, "compute_capability": "8.9", "memory_gib": 24},
        parallel={"tensor": 1, "pipeline": 2},
        serve={"max_model_len": 8192, "gpu_memory_utilization": 0.9},
        speculative={"method": "none"},
        patches=[],
        capacity={"stage_memory_gib": [24, 16], "overhead_gib": 1.0},
    )
    best = search("case", "--pp", "2")[0]
    # 20.6 and 13.4 GiB for weights and cache: the layers follow the memory.
    assert best["partition"] == [29, 19] and best["basis"] == "estimated"


def test_cards_of_a_facts_file_are_taken_in_order(project: Path, search: Search) -> None:
    dense_checkpoint(project, layer_mib=512)
    write_layout(
        project,
        hardware=None,
        parallel={"tensor": 1, "pipeline": 2},
        serve={"max_model_len": 8192},
        speculative={"method": "none"},
        patches=[],
        capacity={"stage_memory_gib": [16, 24]},
    )
    first, second = search("case", "--pp", "2")[0]["partition"]
    assert first < second


def test_every_topology_that_the_cards_allow_is_listed(project: Path, search: Search) -> None:
    write_layout(project, model={"path": "./absent", "facts": "glm-5.3-w4a16"})
    found = search("case")
    shapes = {(item["tensor"], item["pipeline"]): item for item in found}
    assert set(shapes) == {(8, 1), (4, 2), (2, 4), (1, 8)}
    assert shapes[4, 2]["basis"] == "calibrated" and shapes[4, 2]["partition"] == [41, 37]
    assert shapes[2, 4]["basis"] == shapes[8, 1]["basis"] == "estimated"


def test_a_floor_of_memory_is_kept(project: Path, search: Search) -> None:
    write_config(project, GLM)
    write_layout(project)
    assert all(min(item["available_gib"]) >= 18.1 for item in search("case", "--pp", "2", "--floor-gib", "18.1"))


def test_a_search_without_a_result_says_so(project: Path, deploy: Callable[..., Any]) -> None:
    write_config(project, GLM)
    write_layout(project)
    status, _, err = deploy("plan", "search", "case", "--pp", "2", "--floor-gib", "30")
    assert status == 1 and "no partition into 2 stages fits" in err


def test_a_search_without_memory_is_inconclusive(project: Path, deploy: Callable[..., Any]) -> None:
    write_config(project, GLM)
    write_layout(project, capacity=None)
    status, _, err = deploy("plan", "search", "case", "--pp", "2")
    assert status == 3 and "capacity:" in err


def test_imbalance_is_a_limit(project: Path, search: Search) -> None:
    write_config(project, GLM)
    write_layout(project, patches=[])
    found = search("case", "--pp", "2", "--max-imbalance", "1.04")
    assert [item["partition"] for item in found] == [[42, 36]]
    assert json.dumps(found)
