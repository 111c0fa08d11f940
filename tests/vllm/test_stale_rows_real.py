"""Two real faults of a tiny GLM with sparse attention, found over HTTP: stale index rows, and weights nobody loaded.

Stages of 4 and 8 layers put the boundary in front of layer 4, which shares the rows of layer 2. Without a patch the
second stage reads what earlier traffic left. Recomputing with indexer weights that the checkpoint does not hold runs on
memory that nobody wrote: the same within a boot, other values after the next.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dsa_model import PLUGINS, write_model
from served import engine

from shardwright.connect.trees import InstalledTree
from shardwright.overlay.build import build_overlay
from shardwright.overlay.farm import build_farm
from shardwright.overlay.patch import read_patch
from shardwright.probes.journal import Journal
from shardwright.probes.parity.plan import ParityPlan
from shardwright.probes.parity.report import compare
from shardwright.probes.parity.run import run_parity
from shardwright.probes.repeat.report import compare_boots, report_from
from shardwright.probes.repeat.run import RepeatPlan, run_repeat
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import identify
from shardwright.probes.stored import read_records

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).resolve().parents[2]
TRANSPORT, RECOMPUTE = "pp-index-transport", "pp-index-recompute"
INDEX_TOPK = 16
REPEAT = RepeatPlan((40, 100), (12, 60, 140), index_topk=INDEX_TOPK, answer_tokens=8)
PARITY = ParityPlan((12, 40, 100), 8, index_topk=INDEX_TOPK)
OPTIONS = ("--pipeline-parallel-size", "2", "--max-num-batched-tokens", "256", "--no-enable-prefix-caching")

Records = list[dict[str, Any]]
Boot = Callable[..., tuple[Records, Records]]


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """`boot(patch, model, memory)` starts an engine once and returns what repeat and parity recorded of it."""
    folder = tmp_path_factory.mktemp("dsa")
    tree = InstalledTree(sys.executable)

    @cache
    def checkpoint(name: str) -> Path:
        return write_model(folder / name, quantised=name == "quantised")

    @cache
    def farm(patch: str) -> str:
        build_overlay([read_patch(ROOT / "patches" / patch)], tree.vllm_version, tree, folder / patch)
        return str(build_farm(folder / patch, Path(tree.root)))

    @cache
    def run(patch: str = "", model: str = "full", memory: int = 1) -> tuple[Records, Records]:
        name = f"{patch}-{model}-{memory}"
        paths = [farm(patch)] if patch else []
        settings = {
            "PYTHONPATH": os.pathsep.join([*paths, str(PLUGINS)]),
            "VLLM_PP_LAYER_PARTITION": "4,8",
            "DSA_REFERENCE_USED_MEMORY": str(memory),
            "OMP_NUM_THREADS": "1",
        }
        log = folder / f"{name}.log"
        with engine(checkpoint(model), log, *OPTIONS, max_model_len=256, settings=settings) as endpoint:
            server = identify(endpoint, None)
            with Journal(folder / f"{name}-repeat.jsonl") as journal:
                run_repeat(server, REPEAT, journal)
            with Journal(folder / f"{name}-parity.jsonl") as journal:
                run_parity(server, PARITY, journal)
        return read_records(folder / f"{name}-repeat.jsonl"), read_records(folder / f"{name}-parity.jsonl")

    return run


def judged(records: Records) -> ProbeReport:
    return report_from(records, records[0]["plan"])


def test_stale_index_rows_are_found_without_a_reference(boot: Boot) -> None:
    report = judged(boot()[0])
    assert (report.verdict, report.classes) == ("FAIL", {"CHANGED": 2}), report.to_json()


def test_with_transported_rows_the_engine_repeats_itself(boot: Boot) -> None:
    report = judged(boot(TRANSPORT, memory=2)[0])
    assert (report.verdict, report.classes) == ("PASS", {"SAME": 2}), report.to_json()
    assert all(prompt["change"]["gap_max"] == 0 for prompt in report.numbers["prompts"].values())


def test_weights_that_nobody_loaded_show_over_two_boots_and_not_within_one(boot: Boot) -> None:
    one, other = (boot(RECOMPUTE, "quantised", memory)[0] for memory in (1, 2))
    assert judged(one).verdict == judged(other).verdict == "PASS"
    report = compare_boots(one, other)
    assert report.verdict == "FAIL", report.to_json()
    assert "memory that nobody wrote" in report.reasons[-1]


def test_recomputed_rows_are_another_model_past_index_topk_only(boot: Boot) -> None:
    report = compare(boot(TRANSPORT, memory=2)[1], boot(RECOMPUTE, "quantised", 1)[1])
    failed = [gate["name"] for gate in report.numbers["gates"] if not gate["holds"]]
    assert report.verdict == "FAIL"
    assert f"mean KL, positions past {INDEX_TOPK}" in failed
    assert f"mean KL, positions up to {INDEX_TOPK}" not in failed
