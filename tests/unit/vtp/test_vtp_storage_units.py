"""Shards in storage units: for any sizes no byte of the checkpoint is lost, read twice, or left in the padding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.plan.storage_units import NotWholeError, padded_units, rank_bytes, reassembled, split_units


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    """An axis, its padded size and a kernel's, all in whole groups of elements; and the elements per storage unit."""
    tp = draw(st.integers(2, 24))
    per_unit = draw(st.sampled_from([1, 2, 32, 128]))
    original = per_unit * draw(st.integers(1, 200))
    local = per_unit * draw(st.integers(-(-original // per_unit // tp), 120 + original // per_unit // tp))
    kernel = local + per_unit * draw(st.integers(0, 8))
    return tp, original, local * tp, kernel, per_unit, draw(st.integers(1, 3))


@given(axes())
def test_the_real_parts_of_all_ranks_are_the_checkpoint_byte_for_byte(case: tuple[int, int, int, int, int, int]):
    tp, original, virtual, kernel, per_unit, unit_bytes = case
    units = original // per_unit
    shards = split_units(units, original, virtual, tp, kernel)
    source = bytes(index % 255 + 1 for index in range(units * unit_bytes))
    buffers = [rank_bytes(source, shard, unit_bytes) for shard in shards]
    assert reassembled(buffers, shards, unit_bytes) == source
    for shard, buffer in zip(shards, buffers, strict=True):
        assert len(buffer) == kernel // per_unit * unit_bytes == shard.buffer * unit_bytes
        tail = buffer[(shard.stop - shard.start) * unit_bytes :]
        assert tail == bytes(len(tail)), "the padding is zero"
        assert 0 not in buffer[: len(buffer) - len(tail)], "the real part is real"


@given(axes())
def test_every_unit_is_read_by_exactly_one_rank(case: tuple[int, int, int, int, int, int]):
    tp, original, virtual, kernel, per_unit, _ = case
    shards = split_units(original // per_unit, original, virtual, tp, kernel)
    read = [unit for shard in shards for unit in range(shard.start, shard.stop)]
    assert read == list(range(original // per_unit))


@given(axes())
def test_weights_and_scales_of_one_axis_are_cut_at_the_same_elements(case: tuple[int, int, int, int, int, int]):
    tp, original, virtual, kernel, per_unit, _ = case
    rows = split_units(original, original, virtual, tp, kernel)
    units = split_units(original // per_unit, original, virtual, tp, kernel)
    assert [shard.start for shard in rows] == [shard.start * per_unit for shard in units]
    assert [shard.zero_tail for shard in rows] == [shard.zero_tail * per_unit for shard in units]


def test_a_fraction_of_a_scale_block_is_refused():
    assert padded_units(1024, 2048, 2112) == 1056
    with pytest.raises(NotWholeError, match="16 units x 2112/2048"):
        padded_units(16, 2048, 2112)


def test_a_buffer_below_the_share_is_refused():
    with pytest.raises(NotWholeError, match="does not hold"):
        split_units(2048, 2048, 2112, 3, 640)


def test_a_padded_axis_that_does_not_split_is_refused():
    with pytest.raises(NotWholeError, match="do not split into 3 ranks"):
        split_units(2048, 2048, 2048, 3)
