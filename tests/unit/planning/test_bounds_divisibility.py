"""Borders of what a tensor-parallel size divides, and of what an ignore list spares."""

from __future__ import annotations

import pytest

from shardwright.facts.shape import ModelShape, Quantisation
from shardwright.plan.divisibility import largest_tensor, obstacles
from shardwright.plan.storage_units import NotWholeError, padded_units


@pytest.mark.parametrize(
    ("pattern", "spared"),
    [
        ("re:.*mlp.down_proj", True),
        ("re:.*mlp.*", True),
        ("re:.*mlp.experts.*", False),
        ("re:.*mlp.shared_expert.*", False),
        ("re:.*mlp.gate", False),
        ("re:.*mlp.gate$", False),
        ("re:.*mlp.gate.*", False),
        ("re:.*mlp.gate_up_proj", True),
        ("re:.*self_attn.*", False),
        ("model.layers.3.mlp", False),
    ],
)
def test_an_ignore_list_spares_dense_layers_only_when_it_names_all_of_them(pattern: str, spared: bool) -> None:
    quant = Quantisation("fp8", block=(128, 128), ignored=(pattern,))
    shape = ModelShape("", intermediate=192, quantisation=quant)
    assert (obstacles(shape, 2, expert_parallel=False) == ()) == spared


def test_expert_parallelism_cures_neither_heads_nor_vocabulary() -> None:
    shape = ModelShape("", heads=7, kv_heads=3, vocabulary=64)
    found = obstacles(shape, 3, expert_parallel=False) + obstacles(shape, 2, expert_parallel=False)
    assert [obstacle.expert for obstacle in found] == [False] * 4


def test_the_largest_size_lies_below_the_one_that_was_asked_for() -> None:
    shape = ModelShape("", heads=8)
    assert [largest_tensor(shape, below, expert_parallel=False) for below in (2, 3, 4, 5, 8, 9)] == [1, 2, 2, 4, 4, 8]
    assert largest_tensor(ModelShape("", heads=7), 7, expert_parallel=False) == 1


@pytest.mark.parametrize(("units", "original"), [(-1, 4), (4, 0), (4, -4)])
def test_an_axis_without_elements_is_not_padded(units: int, original: int) -> None:
    with pytest.raises(NotWholeError, match="cannot be padded"):
        padded_units(units, original, 8)


def test_the_smallest_axes_are_padded() -> None:
    assert (padded_units(0, 4, 8), padded_units(3, 1, 2)) == (0, 6)
