"""The index patches in a real engine: a tiny GLM with sparse attention, on the CPU, answers compared with `==`.

Stages of 4 and 8 layers put the boundary in front of layer 4, which shares the rows of layer 2. Each engine is started
once and its answers are used by several tests. The engines load into memory that was used differently before, so what
depends on memory that nobody wrote shows, and what is equal does not depend on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardwright.connect.trees import InstalledTree
from shardwright.overlay.build import build_overlay
from shardwright.overlay.farm import build_farm
from shardwright.overlay.patch import read_patch

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "vllm" / "dsa"
PLUGINS = ROOT / "tests" / "plugins"
TRANSPORT, RECOMPUTE = "pp-index-transport", "pp-index-recompute"
MISALIGNED, WITHOUT_FULL_LAYER, ALIGNED = "4,8", "7,2,3", "6,6"
INDEX_TOPK = 16
BATCH_ROUNDING = 1e-4


@dataclass(frozen=True)
class Run:
    """What one engine left: its answers by round, None when it did not start, and its log."""

    answers: dict[str, list[dict[str, Any]]] | None
    log: str

    def __getitem__(self, name: str) -> list[dict[str, Any]]:
        assert self.answers is not None, self.log[-4000:]
        return self.answers[name]


Engine = Callable[..., Run]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dsa")
    for name, options in (("full", []), ("quantised", ["--quantised"])):
        subprocess.run([sys.executable, str(SCRIPTS / "checkpoint.py"), str(made / name), *options], check=True)
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    """`engine(split, patch)` boots once for each setting."""
    tree = InstalledTree(sys.executable)

    @cache
    def farm(patch: str) -> str:
        build_overlay([read_patch(ROOT / "patches" / patch)], tree.vllm_version, tree, folder / patch)
        return str(build_farm(folder / patch, Path(tree.root)))

    @cache
    def run(split: str = "", patch: str = "", model: str = "full", memory: int = 1, track: bool = False) -> Run:
        out = folder / f"{model}-{split}-{patch}-{memory}-{track}.json"
        command = [sys.executable, str(SCRIPTS / "generate.py"), str(folder / model), str(out), "--split", split]
        paths = [farm(patch), str(PLUGINS)] if patch else [str(PLUGINS)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DSA_REFERENCE_USED_MEMORY": str(memory)}
        done = subprocess.run(
            [*command, *(["--track-weights"] if track else [])],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=900,
        )
        return Run(json.loads(out.read_text()) if done.returncode == 0 else None, done.stdout)

    return run


def hit_lines(run: Run) -> list[str]:
    return sorted({line[line.index("[overlay]") :] for line in run.log.splitlines() if "[overlay]" in line})


def largest_difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> float:
    pairs = (
        (a, b)
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left["prompt_logprobs"], right["prompt_logprobs"], strict=True)
    )
    return max(abs(a - b) for a, b in pairs)


def test_one_stage_agrees_with_another_implementation_and_with_itself(engine: Engine, folder: Path) -> None:
    run = engine()
    assert run["single"] == run["again"]
    assert largest_difference(run["single"], run["batch"]) < BATCH_ROUNDING
    answers = folder / "one-stage.json"
    answers.write_text(json.dumps(run.answers))
    oracle = subprocess.run(
        [sys.executable, str(SCRIPTS / "oracle.py"), str(folder / "full"), str(answers), "2"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert max(map(float, oracle.stdout.split())) < 1e-3


def test_a_misaligned_split_without_a_patch_answers_otherwise_and_otherwise_again(engine: Engine) -> None:
    one_stage, run = engine(), engine(MISALIGNED)
    assert all(
        found["tokens"] != expected["tokens"]
        for found, expected in zip(run["single"], one_stage["single"], strict=True)
    )
    assert run["single"] != run["again"], "rows that earlier traffic left behind were expected to show"


@pytest.mark.parametrize("split", [MISALIGNED, WITHOUT_FULL_LAYER])
def test_with_transport_every_number_equals_one_stage(engine: Engine, split: str) -> None:
    run = engine(split, TRANSPORT, memory=2)
    assert run["single"] == engine()["single"]
    assert run["again"] == engine()["single"]


def test_transport_says_on_which_stages_it_sends_and_receives(engine: Engine) -> None:
    hit = "[overlay] pp-index-transport hit"
    assert hit_lines(engine(MISALIGNED, TRANSPORT, memory=2)) == [
        f"{hit} pp_rank=0 layers=[0,4) recv=False send=True",
        f"{hit} pp_rank=1 layers=[4,12) recv=True send=False",
    ]
    assert f"{hit} pp_rank=1 layers=[7,9) recv=True send=True" in hit_lines(
        engine(WITHOUT_FULL_LAYER, TRANSPORT, memory=2)
    )


def test_transport_changes_nothing_where_there_is_one_stage(engine: Engine) -> None:
    run = engine("", TRANSPORT, memory=2)
    assert run["single"] == engine()["single"] and hit_lines(run) == []


def test_an_aligned_split_needs_no_patch(engine: Engine) -> None:
    run = engine(ALIGNED, memory=2)
    assert run["single"] == engine()["single"] and run["again"] == engine()["single"]


def test_recompute_without_weights_is_another_model_at_each_boot(engine: Engine) -> None:
    first = engine(MISALIGNED, RECOMPUTE, "quantised", memory=1)
    second = engine(MISALIGNED, RECOMPUTE, "quantised", memory=2)
    for run in (first, second):
        assert run["single"] == run["again"], "within one boot it looks sound"
        assert len(hit_lines(run)) == 2, "layers 4 and 5"
    assert first["single"] != second["single"]
    assert first["single"] != engine()["single"]


def test_short_prompts_cannot_show_that_recompute_is_another_model(engine: Engine) -> None:
    run, one_stage = engine(MISALIGNED, RECOMPUTE, "quantised", memory=1), engine()
    short, expected = run["single"][0]["prompt_logprobs"], one_stage["single"][0]["prompt_logprobs"]
    assert len(short) < INDEX_TOPK
    assert max(abs(a - b) for a, b in zip(short, expected, strict=True)) < BATCH_ROUNDING


def test_weight_tracking_stops_recompute_without_weights(engine: Engine) -> None:
    run = engine(MISALIGNED, RECOMPUTE, "quantised", track=True)
    assert run.answers is None
    assert "not initialized from checkpoint" in run.log and "layers.4.self_attn.indexer" in run.log
