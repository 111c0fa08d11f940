"""Borders of the pool: blocks, requests and groups, exactly, where one more or one less would still look right."""

from __future__ import annotations

import pytest
from planning_samples import GLM_RULE, plain_pages

from shardwright.facts.weights import LayerBytes, WeightFacts
from shardwright.plan.kv_pages import PageRule
from shardwright.plan.kv_pool import (
    PoolSettings,
    logged_tokens,
    longest_request,
    plan_pool,
    pool_tokens,
    resident_requests,
    stage_blocks,
)
from shardwright.plan.layer_pages import LayerPages, layer_groups
from shardwright.plan.memory import GIB, MemorySources, StageMemory
from shardwright.plan.weights import StageWeights


def test_memory_that_is_missing_is_no_block_even_of_one_byte() -> None:
    assert [stage_blocks(size, 1, PoolSettings()) for size in (-5.0, 0.0, 0.9, 1.0)] == [0, 0, 0, 1]


def test_a_request_that_fills_the_pool_but_for_the_null_block_fits() -> None:
    pages = plain_pages(1)
    block = 2048 * 16
    for blocks, fits in ((10, False), (11, True)):
        memory = StageMemory(MemorySources(tensor=1, stages=1, given_gib=blocks * block / GIB), pages, None)
        plan = plan_pool((1,), pages, memory, PoolSettings(max_model_len=160))
        assert (plan.blocks, plan.request_blocks, plan.fits_one_request) == (blocks, 10, fits)
        assert (plan.partition, plan.unknown) == ((1,), "")


def test_a_request_length_of_nothing_has_no_size() -> None:
    pages = plain_pages(4)
    for length in (None, 0, -1):
        assert logged_tokens(pages, 10, PoolSettings(max_model_len=length)) is None
    assert logged_tokens(pages, 10, PoolSettings(max_model_len=1)) == 10


def test_no_request_is_resident_beside_the_null_block_alone() -> None:
    pages = plain_pages(4)
    assert [resident_requests(blocks, pages, PoolSettings(), 1) for blocks in (0, 1, 2, 3)] == [0, 0, 1, 2]


def test_the_longest_request_is_bounded_by_blocks_and_by_what_was_asked_for() -> None:
    pages = plain_pages(4)
    for asked, longest in ((None, 144), (1000, 144), (144, 144), (143, 143), (1, 1)):
        assert longest_request(10, pages, PoolSettings(max_model_len=asked)) == longest
    assert [longest_request(blocks, pages, PoolSettings(max_model_len=160)) for blocks in (0, 1, 2)] == [0, 0, 16]
    assert longest_request(1, pages, PoolSettings(reserved_blocks=0)) == 16


def test_windows_count_by_requests_and_everything_else_by_blocks() -> None:
    settings = PoolSettings(max_model_len=40)
    assert pool_tokens(plain_pages(4), 10, settings) == 160
    # 40 tokens take 3 blocks of a full group; a window of 17 takes 1 block of 16 and one more.
    mixed = plain_pages(4, (True, False, True, False), window=17)
    assert (mixed.request_blocks(40), pool_tokens(mixed, 10, settings)) == (3 + 2, 80)
    assert plain_pages(4, (True,) * 4, window=18).request_blocks(40) == 3
    assert plain_pages(4, (True,) * 4, window=18).request_blocks(40, in_flight_tokens=-1) == 2


def test_groups_come_full_first_each_with_its_stride() -> None:
    assert layer_groups((True, False, True, True, False, True), 6) == ((1, 4), (0, 3), (2, 5))
    assert layer_groups((), 3) == ((0, 1, 2),)


def test_a_block_is_as_large_as_the_largest_group_on_its_own_stage() -> None:
    # One full layer in a group of its own, and three sliding ones in groups of one each.
    pages = plain_pages(4, (True, False, True, True), window=64)
    assert [pages.block_bytes(0, end) for end in (1, 2, 4)] == [2048 * 16] * 3
    # Two full layers in one group; of the three sliding ones the first and the last share a group.
    uneven = plain_pages(5, (True, False, True, False, True), window=64)
    assert [uneven.block_bytes(0, end) // (2048 * 16) for end in (1, 2, 3, 4, 5)] == [1, 1, 1, 2, 2]
    assert uneven.request_blocks(64) == 4 + 5 + 5


def test_a_sparse_model_without_a_rule_has_an_indexer_on_every_layer() -> None:
    pages = LayerPages(PageRule(656, 132, 64), 4, None, draft_layers=1)
    assert [pages.indexers(*stage) for stage in ((0, 2), (2, 4))] == [2, 3]
    assert (pages.orphans(1, 4), pages.attention_layers(0, 2), pages.attention_layers(2, 4)) == (0, 2, 3)
    assert LayerPages(PageRule(656, 1, 64), 4, None).indexers(0, 4) == 4


def test_orphans_end_at_the_next_full_layer_or_with_the_stage() -> None:
    pages = LayerPages(PageRule(656, 132, 64), 13, GLM_RULE)
    # Full layers of the first thirteen: 0, 1, 2, 6 and 10.
    assert [pages.orphans(start, 13) for start in range(13)] == [0, 0, 0, 3, 2, 1, 0, 3, 2, 1, 0, 2, 1]
    assert [pages.orphans(3, end) for end in (4, 5, 6, 7)] == [1, 2, 3, 3]
    assert [pages.indexers(start, 13) for start in (3, 6, 7, 11)] == [2, 2, 1, 0]


def test_without_indexers_no_layer_is_an_orphan_or_made_to_compute() -> None:
    pages = LayerPages(PageRule(2048, 0, 16), 13, GLM_RULE, draft_layers=1, indexers_on_orphans=True)
    assert (pages.orphans(3, 13), pages.indexers(3, 13)) == (0, 0)


def test_the_defaults_are_the_engines_own() -> None:
    assert PoolSettings() == PoolSettings(None, 1, 0, 1, None)


def weights_of(layers: int, tensor: int = 1) -> StageWeights:
    facts = WeightFacts("test", (LayerBytes(sharded=GIB),) * layers, LayerBytes(), 0, 0, 0)
    return StageWeights(facts, tensor, 0, drafts=False)


def test_weights_of_any_range_of_layers_start_at_nothing() -> None:
    assert [weights_of(4).stage_bytes(0, end) / GIB for end in (1, 2, 4)] == [1.0, 2.0, 4.0]
    assert weights_of(4).stage_bytes(1, 3) / GIB == 2.0


@pytest.mark.parametrize(("stage", "start", "end"), [(0, 0, 2), (1, 2, 4)])
def test_an_upper_bound_is_the_engines_share_less_the_weights_and_nothing_else(
    stage: int, start: int, end: int
) -> None:
    memory = StageMemory(MemorySources(tensor=1, stages=2, card_gib=(10.0, 20.0)), plain_pages(4), weights_of(4))
    assert memory.basis == "bound"
    assert memory.available_bytes(stage, start, end) == (10.0, 20.0)[stage] * GIB * 0.9 - 2 * GIB
