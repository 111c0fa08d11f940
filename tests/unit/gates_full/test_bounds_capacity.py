"""Borders of weights against cards and of one request against the pool, and what of it is refused or only told."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said
from msgspec.structs import replace

from shardwright.facts.attention import AttentionFacts
from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable
from shardwright.facts.facts import Facts
from shardwright.facts.model import ModelFacts
from shardwright.facts.positions import Positions, Rope
from shardwright.facts.shape import ModelShape
from shardwright.facts.weights import LayerBytes, WeightFacts
from shardwright.gates.pool import check_kv_pool
from shardwright.gates.weights import check_weights
from shardwright.layout.capacity import Calibration, Capacity
from shardwright.plan.stages import Plan, build_stages
from shardwright.plan.workspace import default_factor, prefill_workspace_bytes
from shardwright.resolve.deployment import Deployment

GIB = 1 << 30
WEIGHTS = WeightFacts("headers", (LayerBytes(sharded=GIB),) * 8, LayerBytes(), 0, 0, 0)
GQA = AttentionFacts("gqa", num_kv_heads=4, head_dim=128)
MODEL = ModelFacts("c", "Llama", "llama", 8, 0, 32, 1000, None, None, False, attention=GQA)
FACTS = Facts(model=MODEL, weights=WEIGHTS, shape=ModelShape("c", positions=Positions(4096, "max_position_embeddings")))
# 2,048 bytes per token and layer, 16 tokens per block.
BLOCK = 8 * 2048 * 16


def split(*partition: int) -> Plan:
    return Plan(build_stages(partition, None))


def loaded(memory: float, share: float | str, *, pipeline: int = 1, tensor: int = 1, **changes: Any) -> Deployment:
    flag = f"--gpu-memory-utilization {share}"
    return deployed(flag, tensor=tensor, pipeline=pipeline, hardware=(8, "9.0", memory), **changes)


@pytest.mark.parametrize(
    ("memory", "share", "needs"),
    [(10.0, 0.81, None), (10.0, 0.8, 2), (10.0, 0.5, 2), (10.0, 0.4, 3), (5.0, 0.1, 17), (0.0, 0.9, 1)],
)
def test_weights_leave_room_on_the_card(memory: float, share: float, needs: int | None) -> None:
    asked = loaded(memory, share)
    text = (
        f"weights-fit reject: TP=1 PP=1 puts 8.0 GiB of weights on each card, but the engine may use {share:g} x "
        f"{memory:g} = {share * memory:.2f} GiB of it"
    )
    assert said(check_weights, asked, FACTS, split(8)) == ([text] if needs else [])
    start = f"more cards: TP x PP of at least {needs}, or fewer layers"
    assert [fix.startswith(start) for fix in fixes(check_weights, asked, FACTS, split(8))] == [True] * bool(needs)


def test_the_stage_that_does_not_fit_is_named() -> None:
    found = said(check_weights, loaded(10.0, 0.5, pipeline=2), FACTS, split(2, 6))
    assert [text[:81] for text in found] == [
        "weights-fit reject: TP=1 PP=2 puts 6.0 GiB of weights on each card of stage 1, bu"
    ]
    assert said(check_weights, loaded(10.0, 0.5, pipeline=2), FACTS, split(4, 4)) == []
    assert said(check_weights, loaded(10.0, 0.5, tensor=2), FACTS, split(8)) == []


def test_what_is_not_known_of_weights_or_cards_refuses_nothing() -> None:
    tight = loaded(10.0, 0.5)
    assert len(said(check_weights, tight, FACTS, split(8))) == 1
    declared = replace(FACTS, weights=None, model=replace(MODEL, weights=WEIGHTS))
    assert len(said(check_weights, tight, declared, split(8))) == 1
    assert said(check_weights, tight, replace(FACTS, weights=None), split(8)) == []
    assert said(check_weights, tight, Facts(), split(8)) == []
    assert said(check_weights, tight, FACTS, Plan()) == []
    assert said(check_weights, replace(tight, engine=replace(tight.engine, platform="cpu")), FACTS, split(8)) == []
    assert said(check_weights, replace(tight, hardware=None), FACTS, split(8)) == []
    other = replace(FACTS, weights=replace(WEIGHTS, layers=WEIGHTS.layers[1:]))
    assert said(check_weights, tight, other, split(8)) == []


def test_a_share_that_does_not_read_is_refused_where_no_table_of_flags_does() -> None:
    wrong = loaded(10.0, "much")
    assert [text[:19] for text in said(check_weights, wrong, FACTS, split(8))] == ["weights-fit reject:"]
    table = replace(FACTS, engine=EngineFacts(EngineTable("0.30.0", "t", (), (), ())))
    assert said(check_weights, wrong, table, split(8)) == []


def pooled(length: str | None, blocks: float, *flags: str, **changes: Any) -> Deployment:
    """A start with so many blocks of KV cache, given in bytes."""
    words = [f"--kv-cache-memory-bytes {int(blocks * BLOCK)}", *([f"--max-model-len {length}"] if length else [])]
    return deployed(*words, *flags, **changes)


@pytest.mark.parametrize(
    ("length", "blocks", "longest"),
    [("160", 11, None), ("160", 10, 144), ("161", 11, 160), ("16", 2, None), ("16", 1, 0), ("16", 0, 0)],
)
def test_one_request_of_full_length_fits_the_pool(length: str, blocks: int, longest: int | None) -> None:
    asked = pooled(length, blocks)
    found = said(check_kv_pool, asked, FACTS, split(8))
    assert len(found) == (longest is not None)
    for text in found:
        assert text.startswith(f"kv-pool reject: one request of max_model_len {length} needs ")
        assert text.endswith(f"GiB of KV cache on each card, which has 0.00 GiB: the pool holds {16 * blocks} tokens")
    shorter = f"MAX_MODEL_LEN={longest}, another split" if longest else "another split"
    assert [fix.startswith(shorter) for fix in fixes(check_kv_pool, asked, FACTS, split(8))] == [True] * len(found)


def test_the_tight_stage_is_named_where_there_are_several() -> None:
    (found,) = said(check_kv_pool, pooled("1600", 60, pipeline=2), FACTS, split(2, 6))
    assert "GiB of KV cache on stage 1, which has 0.01 GiB: the pool holds 1,280 tokens" in found
    (finding,) = check_kv_pool(pooled("1600", 60, pipeline=2), split(2, 6), FACTS)
    assert finding.evidence == "6 attention layers and 0 indexers, 12,288 B per token; memory given"


@pytest.mark.parametrize("length", ["auto", "-1"])
def test_a_length_that_the_engine_fits_by_itself_is_not_refused(length: str) -> None:
    assert said(check_kv_pool, pooled(length, 1), FACTS, split(8)) == []


@pytest.mark.parametrize(
    ("ropes", "original", "length"),
    [((), None, 4096), ((Rope("linear", 2.0),), None, 8192), ((Rope("longrope", 8.0),), 512, 512)],
)
def test_without_a_length_the_engine_takes_all_positions_and_they_have_to_fit(
    ropes: tuple[Rope, ...], original: int | None, length: int
) -> None:
    positions = Positions(4096, "max_position_embeddings", ropes, None, original)
    facts = replace(FACTS, shape=ModelShape("c", positions=positions))
    assert said(check_kv_pool, pooled(None, length // 16 + 1), facts, split(8)) == []
    (found,) = said(check_kv_pool, pooled(None, length // 16), facts, split(8))
    assert found.startswith(f"kv-pool reject: one request of max_model_len {length:,} needs ")
    assert fixes(check_kv_pool, pooled(None, length // 16), facts, split(8))[0].startswith(
        f"MAX_MODEL_LEN={length - 16}, "
    )


def test_a_sliding_window_that_is_switched_off_is_the_longest_request() -> None:
    positions = Positions(4096, "max_position_embeddings", sliding_window=1024)
    facts = replace(FACTS, shape=ModelShape("c", positions=positions))
    asked = pooled(None, 65, "--disable-sliding-window")
    assert said(check_kv_pool, asked, facts, split(8)) == []
    assert len(said(check_kv_pool, pooled(None, 65), facts, split(8))) == 1


@pytest.mark.parametrize(
    ("deployment", "known"),
    [
        (deployed("--max-model-len 160"), False),
        (pooled("160", 1), True),
        (deployed("--max-model-len 160", f"--kv-cache-memory {BLOCK}"), True),
        (deployed("--max-model-len 160", engine={"platform": "cpu"}, env={"VLLM_CPU_KVCACHE_SPACE": "0"}), True),
        (deployed("--max-model-len 160", capacity=Capacity(None, (), 99.0), hardware=(1, "9.0", 10.0)), False),
    ],
)
def test_only_what_is_known_of_memory_refuses(deployment: Deployment, known: bool) -> None:
    bare = replace(FACTS, weights=None)
    assert bool(said(check_kv_pool, deployment, bare, split(8))) == known
    assert said(check_kv_pool, deployment, bare, Plan()) == []
    unknown = replace(bare, model=replace(MODEL, attention=None))
    assert said(check_kv_pool, deployment, unknown, split(8)) == []


def test_weights_of_either_source_bound_the_pool() -> None:
    asked = deployed("--max-model-len 4000", "--gpu-memory-utilization 0.801", hardware=(1, "9.0", 10.0))
    for facts in (FACTS, replace(FACTS, weights=None, model=replace(MODEL, weights=WEIGHTS))):
        (found,) = said(check_kv_pool, asked, facts, split(8))
        assert "which has at most 0.01 GiB" in found


def calibrated(**changes: Any) -> Capacity:
    given: dict[str, Any] = {
        "partition": (8,),
        "available_gib": (100 * BLOCK / GIB,),
        "layer_gib": 1.0,
        "tensor": None,
        "gpu_memory_utilization": None,
        "boundary_buffer": False,
    }
    return Capacity(Calibration(**{**given, **changes}), (), None)


@pytest.mark.parametrize(("length", "verdict"), [(1584, None), (1585, "info"), (1632, "info"), (1633, "reject")])
def test_a_calibration_of_another_format_refuses_only_beyond_its_margin(length: int, verdict: str | None) -> None:
    # 100 blocks of two bytes an element, taken from a start with one byte; 3 % more are 103 of them, one of them null.
    asked = deployed(f"--max-model-len {length}", capacity=calibrated(kv_cache_dtype="fp8"))
    found = said(check_kv_pool, asked, FACTS, split(8))
    assert [text.split(":")[0] for text in found] == ([f"kv-pool {verdict}"] if verdict else [])
    if verdict == "info":
        assert f"the pool is predicted at 1,600 tokens, below max_model_len {length:,}" in found[0]
    same = deployed(f"--max-model-len {length}", capacity=calibrated())
    assert len(said(check_kv_pool, same, FACTS, split(8))) == (verdict is not None)
    assert all("reject" in text for text in said(check_kv_pool, same, FACTS, split(8)))


def test_an_estimate_tells_and_does_not_refuse() -> None:
    asked = deployed(
        "--max-model-len 100000",
        "--gpu-memory-utilization 0.5",
        capacity=Capacity(None, (), 12.0),
        hardware=(1, "9.0", 40.0),
    )
    (found,) = said(check_kv_pool, asked, FACTS, split(8))
    assert found == "kv-pool info: the pool is estimated at 0 tokens, below max_model_len 100,000"


REFUSED = (
    "ValueError: To serve at least one request with the model's max seq len ({0}), (4.26 GiB KV cache is needed, which "
    "is larger than the available KV cache memory (4.25 GiB).{1}"
)


@pytest.mark.parametrize(("asked", "speaks"), [("99", False), ("100", True), ("101", True), (None, False)])
def test_a_refusal_of_an_earlier_start_holds_for_no_shorter_request(asked: str | None, speaks: bool) -> None:
    flags = [f"--max-model-len {asked}"] if asked else []
    facts = Facts(log="starting\n" + REFUSED.format(100, " the estimated maximum model length is 90."))
    text = (
        "kv-pool reject: an earlier start was refused: max_model_len 100 needs 4.26 GiB of KV cache, available were "
        "4.25 GiB"
    )
    assert said(check_kv_pool, deployed(*flags), facts) == ([text] if speaks else [])
    assert fixes(check_kv_pool, deployed(*flags), facts) == (
        ["MAX_MODEL_LEN=90, or more memory for the KV cache"] if speaks else []
    )
    silent = Facts(log=REFUSED.format(100, ""))
    shorter = [fix.startswith("a shorter max_model_len,") for fix in fixes(check_kv_pool, deployed(*flags), silent)]
    assert shorter == [True] * speaks
    assert said(check_kv_pool, deployed(*flags), Facts(log="all well")) == []


def test_flags_that_do_not_read_are_refused_where_no_table_of_flags_does() -> None:
    table = EngineFacts(EngineTable("0.30.0", "t", (), (), ()))
    for wrong in (
        (pooled("many", 1), replace(FACTS, log=REFUSED.format(100, ""))),
        (pooled("many", 1), FACTS),
        (pooled("160", 1, "--block-size x"), FACTS),
    ):
        assert [text[:15] for text in said(check_kv_pool, *wrong, split(8))] == ["kv-pool reject:"]
        assert said(check_kv_pool, wrong[0], replace(wrong[1], engine=table), split(8)) == []


SPARSE = AttentionFacts("sparse-mla", latent_dim=512, rope_dim=64, index_head_dim=128)


@pytest.mark.parametrize(
    ("version", "length", "factor"),
    [
        ("0.32.0", 262_144, 5),
        ("0.32.0", 262_145, 2),
        ("0.31.9", 262_145, 5),
        ("0.33.0", 300_000, 2),
        ("0.32.0", None, 5),
    ],
)
def test_a_long_request_has_a_smaller_workspace_from_0_32_on(version: str, length: int | None, factor: int) -> None:
    assert default_factor(version, length) == factor


@pytest.mark.parametrize(
    ("attention", "dtype", "length", "size"),
    [
        (SPARSE, "bfloat16", 10, 5 * 10 * 8 * 132),
        (SPARSE, "fp8_ds_mla", 10, 5 * 10 * 1152),
        (SPARSE, "nvfp4_ds_mla", 10, 5 * 10 * 1152),
        (replace(SPARSE, latent_dim=256), "fp8_ds_mla", 10, 5 * 10 * 8 * 132),
        (replace(SPARSE, index_head_dim=1016), "bfloat16", 10, 5 * 10 * 8 * (1016 + 7 * 4)),
        (replace(SPARSE, index_head_dim=1032), "bfloat16", 10, 5 * 10 * 8 * (1032 + 8 * 4)),
        (SPARSE, "fp8_ds_mla", None, 0),
        (GQA, "bfloat16", 10, 0),
        (None, "bfloat16", 10, 0),
    ],
)
def test_a_workspace_holds_keys_or_what_is_unpacked(
    attention: AttentionFacts | None, dtype: str, length: int | None, size: int
) -> None:
    assert prefill_workspace_bytes(attention, dtype, length, 5) == size
