"""Memory for the KV cache to the byte: what each source of knowledge gives, and what it must not take or add."""

from __future__ import annotations

from typing import Any

import pytest
from planning_samples import GLM_RULE, plain_pages

from shardwright.facts.weights import LayerBytes, WeightFacts
from shardwright.layout.capacity import Calibration
from shardwright.plan.kv_pages import PageRule
from shardwright.plan.layer_pages import LayerPages
from shardwright.plan.memory import GIB, MemorySources, MemoryUnknownError, StageMemory
from shardwright.plan.observed import observe
from shardwright.plan.weights import StageWeights

SPARSE = LayerPages(PageRule(656, 132, 64), 8, GLM_RULE)
PLAIN = plain_pages(8)
BUFFER = 1 << 20


def weights(gib: int = 1) -> StageWeights:
    """Eight layers of `gib` each."""
    facts = WeightFacts("test", (LayerBytes(sharded=gib * GIB),) * 8, LayerBytes(), 0, 0, 0)
    return StageWeights(facts, 1, 0, drafts=False)


def booted(**changes: Any) -> Calibration:
    given = {"partition": (4, 4), "available_gib": (8.0, 4.0), "layer_gib": None, "tensor": None}
    return Calibration(**{**given, "gpu_memory_utilization": None, "boundary_buffer": False, **changes})


def sources(**changes: Any) -> MemorySources:
    return MemorySources(**{"tensor": 1, "stages": 2, **changes})


def gib(memory: StageMemory, *ranges: tuple[int, int]) -> list[float]:
    return [memory.available_bytes(stage, *ends) / GIB for stage, ends in enumerate(ranges)]


def test_memory_given_by_hand_is_lessened_by_nothing() -> None:
    memory = StageMemory(sources(given_gib=3.0, boundary_bytes=BUFFER), SPARSE, weights())
    assert memory.basis == "given"
    assert gib(memory, (0, 3), (3, 8)) == [3.0, 3.0]


def test_a_boundary_buffer_is_taken_where_a_later_stage_starts_on_an_orphan_and_nowhere_else() -> None:
    for held, start, expected in ((BUFFER, 4, 4.0 - 1 / 1024), (BUFFER, 6, 4.0 + 2), (0, 4, 4.0)):
        memory = StageMemory(sources(calibration=booted(), boundary_bytes=held), SPARSE, weights())
        assert memory.available_bytes(1, start, 8) / GIB == expected
        assert memory.available_bytes(0, 0, 4) / GIB == 8.0
    assert StageMemory(sources(calibration=booted()), SPARSE, weights()).available_bytes(1, 4, 8) == 4.0 * GIB
    already = booted(boundary_buffer=True)
    memory = StageMemory(sources(calibration=already, boundary_bytes=BUFFER), SPARSE, weights())
    assert memory.available_bytes(1, 4, 8) == 4.0 * GIB


@pytest.mark.parametrize(("layer_gib", "known", "moved"), [(0.5, True, 0.5), (0.5, False, 0.5), (None, True, 1.0)])
def test_a_moved_layer_weighs_what_the_boot_says_before_what_the_checkpoint_says(
    layer_gib: float | None, known: bool, moved: float
) -> None:
    calibration = booted(layer_gib=layer_gib)
    memory = StageMemory(sources(calibration=calibration), PLAIN, weights() if known else None)
    assert memory.basis == "calibrated"
    assert gib(memory, (0, 4), (4, 8)) == [8.0, 4.0]
    assert gib(memory, (0, 5), (5, 8)) == [8.0 - moved, 4.0 + moved]


def test_without_any_weight_of_a_layer_none_can_be_moved() -> None:
    memory = StageMemory(sources(calibration=booted()), PLAIN, None)
    assert gib(memory, (0, 4), (4, 8)) == [8.0, 4.0]
    with pytest.raises(MemoryUnknownError, match="no layer can be moved"):
        memory.available_bytes(1, 5, 8)


def test_a_boot_with_another_cache_is_said_to_be_converted() -> None:
    memory = StageMemory(sources(calibration=booted(), other_cache=True, workspace_bytes=GIB), PLAIN, None)
    assert (memory.basis, gib(memory, (0, 4), (4, 8))) == ("converted", [9.0, 5.0])


@pytest.mark.parametrize(
    ("before", "cards", "expected"),
    [
        (None, (10.0, 20.0), [8.0, 4.0]),
        (0.9, (10.0, 20.0), [8.0, 4.0]),
        (0.4, (10.0, 20.0), [13.0, 14.0]),
        (0.4, (10.0,), [8.0, 4.0]),
        (0.4, (), [8.0, 4.0]),
    ],
)
def test_utilization_moves_each_stage_by_its_own_card(
    before: float | None, cards: tuple[float, ...], expected: list[float]
) -> None:
    calibration = booted(gpu_memory_utilization=before)
    memory = StageMemory(sources(calibration=calibration, card_gib=cards), PLAIN, None)
    assert gib(memory, (0, 4), (4, 8)) == expected


@pytest.mark.parametrize(
    ("calibration", "basis"),
    [
        (booted(tensor=1), "calibrated"),
        (booted(tensor=2), "estimated"),
        (booted(partition=(8,), available_gib=(8.0,)), "estimated"),
        (None, "bound"),
    ],
)
def test_only_a_boot_of_the_same_shape_is_taken_as_it_is(calibration: Calibration | None, basis: str) -> None:
    given = sources(calibration=calibration, card_gib=(20.0, 20.0))
    assert StageMemory(given, PLAIN, weights(), weights()).basis == basis


def test_overheads_of_another_shape_are_those_of_its_first_and_its_last_stage() -> None:
    # 18 GiB a card; the three stages held 10 + 2, 11 + 3 and 12 + 3.
    other = booted(partition=(2, 3, 3), available_gib=(10.0, 11.0, 12.0))
    memory = StageMemory(sources(calibration=other, card_gib=(20.0, 20.0)), PLAIN, weights(), weights())
    assert gib(memory, (0, 4), (4, 8)) == [18.0 - 6.0 - 4.0, 18.0 - 3.0 - 4.0]
    given = sources(calibration=other, card_gib=(20.0, 20.0), workspace_bytes=GIB)
    assert gib(StageMemory(given, PLAIN, weights(), weights()), (0, 4), (4, 8)) == [9.0, 12.0]


def test_an_overhead_is_reckoned_at_the_utilization_of_its_boot_and_never_below_nothing() -> None:
    other = booted(tensor=2, gpu_memory_utilization=0.5)
    memory = StageMemory(sources(calibration=other, card_gib=(20.0, 30.0)), PLAIN, weights(), weights())
    # At 0.5 a card of 20 GiB has 10: less than the 12 that the first stage held, 2 more than the 8 of the last.
    assert gib(memory, (0, 4), (4, 8)) == [18.0 - 4.0, 27.0 - 2.0 - 4.0]


def test_a_declared_overhead_counts_on_every_stage() -> None:
    memory = StageMemory(sources(card_gib=(20.0, 20.0), overhead_gib=2.0), PLAIN, weights())
    assert (memory.basis, gib(memory, (0, 4), (4, 8))) == ("estimated", [12.0, 12.0])


@pytest.mark.parametrize("cards", [(), (20.0,), (20.0, 20.0, 20.0)])
def test_cards_that_are_not_known_for_each_stage_give_no_memory(cards: tuple[float, ...]) -> None:
    with pytest.raises(MemoryUnknownError, match="memory of the cards"):
        StageMemory(sources(card_gib=cards), PLAIN, weights())
    with pytest.raises(MemoryUnknownError, match="neither a calibration"):
        StageMemory(sources(card_gib=cards), PLAIN, None)


def usage(requested: float, in_use: float) -> str:
    return (
        f"Desired GPU memory utilization is (0.95, {requested} GiB). Actual usage is 0.0 GiB for consumed memory "
        "(weights + non-torch), 0.0 GiB for peak activation, and 0.0 GiB for CUDAGraph memory. Current kv cache memory "
        f"in use is {in_use} GiB."
    )


@pytest.mark.parametrize(
    ("requested", "in_use", "available"), [(0.03, 0.0, 0.0), (0.04, 0.0, 0.04), (9.004, 1.0, 9.0), (9.006, 1.0, 9.01)]
)
def test_memory_in_use_counts_as_available_up_to_rounding(requested: float, in_use: float, available: float) -> None:
    (rank,) = observe([usage(requested, in_use)]).ranks
    assert (rank.stage, rank.tensor_rank, rank.available_gib) == (0, 0, available)


def test_a_rank_without_a_stage_in_its_tag_is_of_the_first() -> None:
    (rank,) = observe(["(Worker_TP3 pid=9) Explicitly set (1.0/23.42) GiB for KV cache on node 0."]).ranks
    assert (rank.stage, rank.tensor_rank) == (0, 3)
