"""Our stages against those of the real engine."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.plan.partition import PartitionError, default_partition, parse_partition
from shardwright.plan.stages import build_stages

pytestmark = pytest.mark.vllm

VARIABLE = "VLLM_PP_LAYER_PARTITION"
Ranges = list[tuple[int, int]]


def engine_ranges(layers: int, stages: int) -> Ranges:
    from vllm.distributed.utils import get_pp_indices

    return [get_pp_indices(layers, rank, stages) for rank in range(stages)]


def our_ranges(partition: tuple[int, ...]) -> Ranges:
    return [(stage.first_layer, stage.end_layer) for stage in build_stages(partition, None)]


def test_default_split_differs_from_the_engines_for_no_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for layers in (*range(1, 65), 78, 80, 92, 126):
        for stages in range(1, min(layers, 17)):
            assert our_ranges(default_partition(layers, stages)) == engine_ranges(layers, stages), (layers, stages)


@pytest.mark.parametrize(
    "text",
    ["39,39", "41,37", " 41 , 37 ", "45,33", "20,20,20,18", "18,20,20,20", "26,26,26", "\t42,36", "01,77", "1,1,1,75"],
)
def test_what_we_accept_the_engine_reads_the_same_way(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, text)
    counts = parse_partition(text)
    assert our_ranges(counts) == engine_ranges(78, len(counts))


@pytest.mark.parametrize("text", ["41,37,", "", "39.0,39", "41;37", "0x29,37", "41,", "40,37", "26,26,26"])
def test_what_the_engine_raises_for_two_stages_never_passes(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=r"."):
        engine_ranges(78, 2)
    try:
        counts = parse_partition(text)
    except PartitionError:
        return
    assert len(counts) != 2 or sum(counts) != 78


@pytest.mark.parametrize("text", ["78,0", "80,-2", "+41,37", "4_1,37"])
def test_the_engine_takes_what_we_refuse_and_that_is_why_we_refuse_it(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, text)
    assert engine_ranges(78, 2)[0][0] == 0
    with pytest.raises(PartitionError):
        parse_partition(text)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.sampled_from([",", " ,", ", ", "\t,"]))
def test_no_accepted_partition_means_other_ranges_to_the_engine(counts: list[int], comma: str):
    text = comma.join(map(str, counts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, text)
        accepted = parse_partition(text)
        assert our_ranges(accepted) == engine_ranges(sum(counts), len(counts))
    edges = [0, *(end for _, end in our_ranges(accepted))]
    assert [end - start for start, end in pairwise(edges)] == counts
