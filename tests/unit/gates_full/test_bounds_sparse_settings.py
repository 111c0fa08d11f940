"""Borders of sparse-MLA backends beyond cards and KV formats: precision, top-k, decode contexts, names of others."""

from __future__ import annotations

import pytest
from deployed import deployed, said
from msgspec.structs import replace

from shardwright.facts.capability import Cards, capability_numbers
from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.facts.model import IndexRule, ModelFacts
from shardwright.facts.shape import ModelShape
from shardwright.gates.attention import check_attention_backend
from shardwright.gates.indexer_weights import check_indexer_weights

SPARSE = ModelFacts("c", "GlmMoeDsaForCausalLM", "glm", 4, 1, 64, 1000, 2048, None, False)
START = "attention-backend reject: "


def on(card: str, topk: int = 2048) -> Facts:
    return Facts(model=replace(SPARSE, index_topk=topk), gpus=(Gpu("card", card, 80.0),))


@pytest.mark.parametrize(
    ("card", "backend", "fits"),
    [
        ("9.0", None, True),
        ("9.0", "FLASHMLA_SPARSE", False),
        ("9.0", "FLASH_ATTN_MLA_SPARSE", True),
        ("9.0", "FLASHINFER_MLA_SPARSE_SM90", False),
        ("10.0", None, True),
        ("10.0", "FLASHMLA_SPARSE", False),
        ("10.0", "FLASHINFER_MLA_SPARSE", True),
        ("12.0", None, False),
    ],
)
def test_float16_needs_a_backend_that_computes_in_it(card: str, backend: str | None, fits: bool) -> None:
    named = [f"--attention-backend {backend}"] if backend else []
    for dtype in ("half", "float16"):
        found = said(check_attention_backend, deployed(f"--dtype {dtype}", *named), on(card))
        assert (found == []) == fits
        end = f"on compute capability {card} computes in bfloat16 only, and dtype asks for float16"
        assert fits or (found[0].startswith(START) and found[0].endswith(end))
    for dtype in ("auto", "bfloat16"):
        assert said(check_attention_backend, deployed(f"--dtype {dtype}", *named), on(card)) == []


def test_a_packed_cache_leaves_no_backend_in_float16() -> None:
    asked = deployed("--dtype half", "--kv-cache-dtype fp8_ds_mla")
    (found,) = said(check_attention_backend, asked, on("9.0"))
    assert (
        found
        == f"{START}FLASHMLA_SPARSE on compute capability 9.0 computes in bfloat16 only, and dtype asks for float16"
    )


@pytest.mark.parametrize(
    ("card", "topk", "fits"),
    [("12.0", 2048, True), ("12.0", 1024, False), ("12.1", 4096, False), ("9.0", 1024, True), ("10.0", 1024, True)],
)
def test_one_backend_takes_one_top_k_only(card: str, topk: int, fits: bool) -> None:
    text = (
        f"{START}FLASHINFER_MLA_SPARSE_SM120 on compute capability {card} takes index_topk 2048 only, and the model has"
    )
    assert said(check_attention_backend, deployed(), on(card, topk)) == ([] if fits else [f"{text} {topk}"])


@pytest.mark.parametrize(
    ("card", "version", "backend", "dtype", "fits"),
    [
        ("9.0", "0.28.0", None, "auto", False),
        ("9.0", "0.29.9", None, "auto", False),
        ("9.0", "0.30.0", None, "auto", True),
        ("9.0", "0.33.9", None, "fp8_ds_mla", True),
        ("9.0", "0.30.0", "FLASH_ATTN_MLA_SPARSE", "auto", False),
        ("9.0", "0.30.0", "FLASHINFER_MLA_SPARSE_SM90", "auto", False),
        ("9.0", "0.30.0", None, "float16", False),
        ("9.0", "0.30.0", None, "fp8_e4m3", False),
        ("10.0", "0.28.0", None, "auto", True),
        ("10.0", "0.28.0", "FLASHMLA_SPARSE", "auto", False),
        ("10.0", "0.30.0", "FLASHMLA_SPARSE", "auto", True),
        ("10.0", "0.33.0", "FLASH_ATTN_MLA_SPARSE_FA4", "bfloat16", True),
        ("10.0", "0.30.0", None, "nvfp4_ds_mla", True),
        ("10.0", "0.28.0", None, "fp8_ds_mla", False),
        ("12.0", "0.30.0", None, "auto", False),
    ],
)
def test_decode_context_parallelism_needs_a_backend_that_returns_its_sums(
    card: str, version: str, backend: str | None, dtype: str, fits: bool
) -> None:
    named = [f"--attention-backend {backend}"] if backend else []
    flags = (f"--kv-cache-dtype {dtype}", *named)
    found = said(
        check_attention_backend,
        deployed("--decode-context-parallel-size 2", *flags, engine={"vllm": version}),
        on(card),
    )
    text = f"no sparse-MLA backend of vLLM {version} on compute capability {card} takes DCP=2 with these settings"
    assert found == ([] if fits else [f"{START}{text}"])
    one = deployed("--decode-context-parallel-size 1", *flags, engine={"vllm": version})
    assert said(check_attention_backend, one, on(card)) == []


def test_a_backend_of_dense_attention_is_told_what_it_lacks() -> None:
    (found,) = said(check_attention_backend, deployed("--attention-backend FLASHMLA"), on("9.0"))
    assert found == f"{START}FLASHMLA does not serve GlmMoeDsaForCausalLM, which needs sparse attention"


def test_capabilities_are_compared_as_numbers() -> None:
    assert [capability_numbers(text) for text in ("9.0", "12.1", "10", "8.", "", "x.1", "9.x")] == [
        (9, 0),
        (12, 1),
        (10, 0),
        (8, 0),
        None,
        None,
        None,
    ]
    assert [Cards("9.0", "10.3").hold(text) for text in ("8.9", "9.0", "10.3", "10.4", "?")] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert [Cards("9.0").hold(text) for text in ("8.9", "9.0", "99.9")] == [False, True, True]


def test_the_fourth_flash_attention_is_for_cards_of_10_in_bfloat16() -> None:
    for card in ("9.0", "10.0", "10.3", "11.0", "12.0"):
        for dtype in ("auto", "bfloat16", "float16", "fp8", "fp8_ds_mla"):
            asked = deployed(
                "--attention-backend FLASH_ATTN_MLA_SPARSE_FA4",
                f"--kv-cache-dtype {dtype}",
                engine={"vllm": "0.33.0"},
            )
            fits = card.startswith("10") and dtype in ("auto", "bfloat16")
            assert (said(check_attention_backend, asked, on(card)) == []) == fits, (card, dtype)
    half = deployed("--attention-backend FLASH_ATTN_MLA_SPARSE_FA4", "--dtype half", engine={"vllm": "0.33.0"})
    assert len(said(check_attention_backend, half, on("10.0"))) == 1


@pytest.mark.parametrize(
    ("rule", "verdict", "counts"),
    [
        (IndexRule(4, 2), None, ()),
        (IndexRule(4, 2, None, ("full", "full", "shared", "shared")), None, ()),
        (IndexRule(1, 2, None, ("full", "full", "shared", "shared")), "info", (2, 4)),
        (IndexRule(1, 2, "FSFF", ("full", "full", "shared", "shared")), "warn", (2, 3)),
        (IndexRule(4, 2, None, ("full",) * 4), "warn", (4, 2)),
        (IndexRule(2, 2, None, ("full",) * 4), "warn", (4, 3)),
    ],
)
def test_two_schedules_in_one_config_are_told_apart(
    rule: IndexRule, verdict: str | None, counts: tuple[int, int]
) -> None:
    model = replace(SPARSE, index_rule=rule)
    facts = Facts(model=model, shape=ModelShape("c"))
    text = "indexer-weights {}: indexer_types has {} full layers, and the keys that the engine reads give {}"
    wanted = [text.format(verdict, *counts)] if verdict else []
    assert said(check_indexer_weights, deployed(), facts) == wanted
    other = replace(facts, model=replace(model, architecture="HYV4ForCausalLM"))
    assert said(check_indexer_weights, deployed(), other) == []
