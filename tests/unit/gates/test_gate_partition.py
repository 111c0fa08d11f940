"""`pp-layer-partition`: what the engine would raise for in every worker, minutes into the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.gates.finding import Finding
from tests.unit.helpers import GLM, env, findings, request_for


def judged(root: Path, pipeline: int, split: str | None, extra: str = "") -> list[Finding]:
    value = "null" if split is None else f"'{split}'"
    text = GLM + f"parallel: {{pipeline: {pipeline}, layer_partition: {value}}}\n{extra}"
    return findings(request_for(root, text), "pp-layer-partition")


@pytest.mark.parametrize(
    ("pipeline", "split", "reason"),
    [
        (2, "26,26,26", "has 3 stages, but PP=2"),
        (4, "41,37", "has 2 stages, but PP=4"),
        (2, "41,38", "adds up to 79, but the model has 78 layers (+1)"),
        (2, "40,37", "adds up to 77, but the model has 78 layers (-1)"),
        (2, "80,-2", "is not a plain whole number"),
        (2, "78,0", "a stage with 0 layers"),
        (2, "41,37,", "an entry between the commas is empty"),
        (2, "39.0,39", "is not a plain whole number"),
    ],
)
def test_a_partition_that_does_not_fit_is_refused_with_an_example(
    tmp_path: Path, pipeline: int, split: str, reason: str
):
    (finding,) = judged(tmp_path, pipeline, split)
    assert finding.verdict == "reject"
    assert reason in finding.message
    assert f"PP_LAYER_PARTITION={'39,39' if pipeline == 2 else '19,20,20,19'}" in finding.fix


@pytest.mark.parametrize("split", ["41,37", " 41 , 37 ", "42,36", "77,1"])
def test_a_partition_that_fits_is_accepted_and_passed_on_without_blanks(tmp_path: Path, split: str):
    assert judged(tmp_path, 2, split) == []
    text = GLM + f"parallel: {{pipeline: 2, layer_partition: '{split}'}}\n"
    assert env(request_for(tmp_path, text))["VLLM_PP_LAYER_PARTITION"] == split.replace(" ", "")


def test_a_partition_at_pp_1_is_dropped_with_a_warning(tmp_path: Path):
    (finding,) = judged(tmp_path, 1, "78")
    assert (finding.verdict, "is dropped, because PP=1" in finding.message) == ("warn", True)
    text = GLM + "parallel: {layer_partition: [78]}\n"
    assert "VLLM_PP_LAYER_PARTITION" not in env(request_for(tmp_path, text))


def test_no_partition_at_pp_1_is_nothing_to_warn_of(tmp_path: Path):
    assert judged(tmp_path, 1, None) == []


def test_a_sum_that_nobody_can_check_is_unknown(tmp_path: Path):
    (finding,) = judged(tmp_path, 2, "41,37", "model: {facts: null}\n")
    assert finding.verdict == "unknown"


def test_a_wrong_number_of_stages_is_refused_even_where_the_model_is_unknown(tmp_path: Path):
    (finding,) = judged(tmp_path, 2, "1,2,3", "model: {facts: null}\n")
    assert (finding.verdict, "has 3 stages, but PP=2" in finding.message) == ("reject", True)


def test_more_stages_than_layers_are_refused(tmp_path: Path):
    (finding,) = judged(tmp_path, 79, None)
    assert (finding.verdict, "the model has 78" in finding.message) == ("reject", True)
    assert judged(tmp_path, 78, None) == []
