"""Borders of what the cards must hold."""

from __future__ import annotations

import pytest
from deployed import RULE, deployed, fixes, flags, said
from msgspec.structs import replace

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable, Flag
from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.facts.shape import ModelShape, Quantisation
from shardwright.gates.cards import (
    check_card_capability,
    check_custom_all_reduce_topology,
    check_free_memory,
    check_uneven_cards,
)

TABLE = EngineTable(
    "0.30.0", "test", (Flag("--seed", default="5"), Flag("--gpu-memory-utilization", default="0.5")), (), ()
)
MXFP4 = ModelShape("", quantisation=Quantisation("mxfp4", fp4_experts=True))


def card(memory: float = 80.0, free: float | None = None, capability: str = "9.0") -> Gpu:
    return Gpu("card", capability, memory, free)


@pytest.mark.parametrize(
    ("capability", "old"),
    [("7.9", True), ("8.0", False), ("8.1", False), ("9.0", False), ("12.1", False), ("7.5", True), ("8", False)],
)
def test_formats_of_the_weights_need_a_card_of_8_0(capability: str, old: bool) -> None:
    cards = Facts(gpus=(card(capability=capability), card(capability="9.0")))
    needs = "bfloat16 needs compute capability 8.0 or above, and the cards of this host have"
    expected = [f"card-capability reject: {needs} {capability}"]
    asked = deployed("--dtype bfloat16")
    assert said(check_card_capability, asked, cards) == (expected if old else [])
    assert said(check_card_capability, deployed("--dtype half"), cards) == []
    assert said(check_card_capability, deployed("--dtype bfloat16", engine={"platform": "cpu"}), cards) == []
    fp4 = said(check_card_capability, deployed(), replace(cards, shape=MXFP4))
    assert [text[:42] for text in fp4] == (["card-capability reject: MXFP4 experts need"] if old else [])
    plain = ModelShape("", quantisation=Quantisation("fp8"))
    assert said(check_card_capability, deployed(), replace(cards, shape=plain)) == []


def test_a_capability_that_does_not_read_is_not_called_old() -> None:
    assert said(check_card_capability, deployed("--dtype bfloat16", hardware=(1, "unknown", 80.0))) == []
    assert said(check_card_capability, deployed("--dtype bfloat16", hardware=(1, "8.x", 80.0))) == []
    old = said(check_card_capability, deployed("--dtype bfloat16", hardware=(1, "7.x", 80.0)))
    assert old[0].endswith("hardware: of the layout have 7.x")


@pytest.mark.parametrize(("free", "enough"), [(None, True), (40.0, True), (39.99, False), (0.0, False)])
def test_a_card_needs_its_share_free(free: float | None, enough: bool) -> None:
    facts = Facts(gpus=(card(), card(free=free)))
    asked = deployed("--gpu-memory-utilization 0.5", tensor=2)
    found = said(check_free_memory, asked, facts)
    assert (found == []) == enough
    if not enough:
        assert found == [
            f"free-memory reject: card 1: {free:.2f} of 80.00 GiB are free, but 0.5 of it are asked for (40.00 GiB)"
        ]
    assert said(check_free_memory, replace(asked, engine=replace(asked.engine, platform="cpu")), facts) == []
    # The engine asks for its share before it looks at a cache size given by hand.
    by_hand = deployed("--gpu-memory-utilization 0.5", "--kv-cache-memory-bytes 5", tensor=2)
    assert said(check_free_memory, by_hand, facts) == found


def test_the_share_that_would_fit_is_rounded_down_to_hundredths() -> None:
    facts = Facts(gpus=(card(free=30.0),))
    assert fixes(check_free_memory, deployed("--gpu-memory-utilization 0.9"), facts) == [
        "nvidia-smi names the holder; or GPU_MEMORY_UTILIZATION=0.37"
    ]
    for free, share in ((0.0, "0"), (0.8, "0.01"), (-1.0, "0")):
        (fix,) = fixes(check_free_memory, deployed("--gpu-memory-utilization 0.9"), Facts(gpus=(card(free=free),)))
        assert fix.endswith(f"={share}")


def test_without_a_share_in_the_layout_the_engines_default_counts_and_without_a_table_nothing() -> None:
    facts = Facts(gpus=(card(free=39.0),))
    assert said(check_free_memory, deployed(), facts) == []
    assert said(check_free_memory, deployed(), replace(facts, engine=EngineFacts(None))) == []
    assert len(said(check_free_memory, deployed(), replace(facts, engine=EngineFacts(TABLE)))) == 1
    assert said(check_free_memory, deployed(), Facts(gpus=(card(free=41.0),), engine=EngineFacts(TABLE))) == []
    assert said(check_free_memory, deployed("--gpu-memory-utilization most"), facts) == []
    bare = EngineTable("0.30.0", "test", (), (), ())
    assert said(check_free_memory, deployed(), replace(facts, engine=EngineFacts(bare))) == []


@pytest.mark.parametrize(
    ("tensor", "links", "verdict", "word"),
    [
        (1, "pcie", None, ""),
        (2, "pcie", "warn", "TP=2 over PCIe"),
        (2, "pairs", None, ""),
        (2, None, None, ""),
        (3, "pcie", "info", "at TP=3 the engine"),
        (4, "pcie", "info", "needs NVLink"),
        (4, "pairs", "info", "needs NVLink"),
        (4, "all", None, ""),
        (4, None, None, ""),
        (5, "all", "info", "exists for 2, 4, 6, 8, 16 ranks"),
        (6, "all", None, ""),
        (7, "all", "info", "at TP=7"),
        (8, "all", None, ""),
        (9, "all", "info", "at TP=9"),
        (15, "all", "info", "at TP=15"),
        (16, "all", None, ""),
        (17, "all", "info", "at TP=17"),
    ],
)
def test_custom_all_reduce_by_ranks_and_links(tensor: int, links: str | None, verdict: str | None, word: str) -> None:
    found = said(check_custom_all_reduce_topology, deployed(tensor=tensor), Facts(links=links))
    assert len(found) == (verdict is not None)
    for text in found:
        assert text.startswith(f"all-reduce-topology {verdict}: ") and word in text
    for silent in (
        deployed(tensor=tensor, engine={"platform": "cpu"}),
        deployed(tensor=tensor, engine={"command": ()}),
    ):
        assert said(check_custom_all_reduce_topology, silent, Facts(links=links)) == []


def test_only_a_switch_of_the_layouts_own_settles_the_topology() -> None:
    facts = Facts(links="pcie")
    own = deployed("--disable-custom-all-reduce x", tensor=2)
    own = replace(own, engine_args=(*flags("--seed 5", origin=RULE), *own.engine_args))
    assert said(check_custom_all_reduce_topology, own, facts) == []
    by_rule = replace(own, engine_args=flags("--disable-custom-all-reduce", origin=RULE))
    assert len(said(check_custom_all_reduce_topology, by_rule, facts)) == 1


def test_cards_are_uneven_from_a_tenth_of_a_gib_on() -> None:
    uneven = Facts(gpus=(card(24.0), card(23.64)))
    found = ["uneven-cards info: cards of 23.6 and 24 GiB in one deployment"]
    assert said(check_uneven_cards, deployed(tensor=2), uneven) == found
    assert said(check_uneven_cards, deployed(tensor=3), uneven) == found
    assert said(check_uneven_cards, deployed(), uneven) == []
    assert said(check_uneven_cards, deployed(tensor=2), Facts(gpus=(card(24.01), card(24.04)))) == []
    assert said(check_uneven_cards, deployed(tensor=2, engine={"platform": "cpu"}), uneven) == []
    assert (
        said(check_uneven_cards, deployed(tensor=2))
        == said(check_uneven_cards, deployed(tensor=2), Facts(gpus=()))
        == []
    )
