"""Partitions as text, and the engine's default split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.plan.partition import PartitionError, default_partition, parse_partition


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (78, (39, 39)),
        (78, (19, 20, 20, 19)),
        (61, (31, 30)),
        (61, (20, 21, 20)),
        (61, (15, 15, 16, 15)),
        (43, (14, 15, 14)),
        (80, (27, 27, 26)),
        (92, (11, 11, 11, 12, 12, 12, 12, 11)),
        (3, (1, 1, 1)),
    ],
)
def test_the_remainder_goes_where_the_engine_puts_it(layers: int, expected: tuple[int, ...]):
    assert default_partition(layers, len(expected)) == expected


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 16), st.integers(0, 200))
def test_a_default_split_loses_no_layer_and_no_stage(stages: int, extra: int):
    counts = default_partition(stages + extra, stages)
    assert len(counts) == stages
    assert sum(counts) == stages + extra
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("text", ["41,37", " 41 , 37 ", "\t41,37", "041,37"])
def test_blanks_around_the_numbers_are_no_reason_to_refuse(text: str):
    assert parse_partition(text) == (41, 37)


@pytest.mark.parametrize(
    "text",
    [
        "41,37,",
        ",41,37",
        "41,,37",
        "",
        " ",
        "39.0,39",
        "80,-2",
        "78,0",
        "78,00",
        "\uff14\uff11,37",  # full-width digits, which int() takes
        "\u0664\u0661,37",  # Arabic-Indic digits
        "+41,37",
        "4_1,37",
        "0x29,37",
        "41;37",
        "41 37",
        "1e1,68",
        "41,37\n",
        "41,\xa037",
        "9" * 5000,
        "1000000000,1",
        "41,37\x00",
    ],
)
def test_what_int_would_take_for_a_number_is_refused(text: str):
    with pytest.raises(PartitionError):
        parse_partition(text)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.text(alphabet=st.sampled_from("0123456789,+-_. \t\n\u0660\uff11x"), max_size=12))
def test_no_text_gives_a_stage_without_layers_or_another_exception(text: str):
    try:
        counts = parse_partition(text)
    except PartitionError:
        return
    assert all(count > 0 for count in counts)
    assert counts == tuple(int(part) for part in text.split(","))
