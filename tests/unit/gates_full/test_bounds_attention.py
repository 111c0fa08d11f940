"""Borders of attention backends: every stock backend on its cards, in its versions and with its cache formats."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said
from msgspec.structs import replace

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable
from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.facts.model import ModelFacts
from shardwright.facts.shape import ModelShape, Quantisation
from shardwright.gates.attention import check_attention_backend
from shardwright.gates.capabilities import capabilities_of, major_of
from shardwright.layout.schema import Provides

SPARSE = ModelFacts("c", "GlmMoeDsaForCausalLM", "glm", 4, 1, 64, 1000, 2048, None, False)
TABLE = EngineTable("0.30.0", "t", (), (), ("FLASHMLA_SPARSE", "FLASH_ATTN_MLA_SPARSE", "TRITON_ATTN"))


def on(*capabilities: str, **changes: Any) -> Facts:
    cards = tuple(Gpu("card", capability, 80.0) for capability in capabilities)
    return replace(Facts(model=SPARSE, gpus=cards or None), **changes)


def takes(version: str, capability: str, dtype: str, backend: str | None = None) -> bool:
    flags = [f"--kv-cache-dtype {dtype}", *([f"--attention-backend {backend}"] if backend else [])]
    found = said(check_attention_backend, deployed(*flags, engine={"vllm": version}), on(capability))
    assert all(text.startswith("attention-backend reject") for text in found)
    return not found


DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla")
BACKENDS = {
    ("FLASHMLA_SPARSE", "9.0"): ("auto", "bfloat16", "fp8", "fp8_ds_mla"),
    ("FLASHMLA_SPARSE", "10.0"): ("auto", "bfloat16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"),
    ("FLASH_ATTN_MLA_SPARSE", "9.0"): ("auto", "bfloat16", "float16"),
    ("FLASHINFER_MLA_SPARSE", "10.0"): ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3"),
    ("FLASHINFER_MLA_SPARSE_SM120", "12.0"): ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"),
    ("FLASHINFER_MLA_SPARSE_SM90", "9.0"): ("auto", "bfloat16", "fp8", "fp8_e4m3"),
}
MAJORS = ("7.5", "8.0", "9.0", "10.0", "11.0", "12.1", "13.0")


@pytest.mark.parametrize("backend", sorted({backend for backend, _ in BACKENDS}))
def test_a_backend_takes_its_own_cards_and_formats_only(backend: str) -> None:
    for capability in MAJORS:
        wanted = BACKENDS.get((backend, capability.replace("12.1", "12.0")), ())
        assert [dtype for dtype in DTYPES if takes("0.30.0", capability, dtype, backend)] == [
            dtype for dtype in DTYPES if dtype in wanted
        ], capability


@pytest.mark.parametrize(
    ("capability", "formats"),
    [
        ("9.0", ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_ds_mla")),
        ("10.0", DTYPES),
        ("12.0", ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla")),
        ("8.0", ()),
    ],
)
def test_without_a_name_any_backend_of_the_card_may_do(capability: str, formats: tuple[str, ...]) -> None:
    assert tuple(dtype for dtype in DTYPES if takes("0.30.0", capability, dtype)) == formats
    assert tuple(dtype for dtype in DTYPES if takes("0.30.0", capability, dtype, "auto")) == formats


@pytest.mark.parametrize(
    ("backend", "capability", "dtype", "first"),
    [
        ("FLASHMLA_SPARSE", "9.0", "auto", "0.28"),
        ("FLASHMLA_SPARSE", "10.0", "nvfp4_ds_mla", "0.30"),
        ("FLASH_ATTN_MLA_SPARSE", "9.0", "auto", "0.28"),
        ("FLASHINFER_MLA_SPARSE", "10.0", "auto", "0.28"),
        ("FLASHINFER_MLA_SPARSE_SM120", "12.0", "auto", "0.28"),
        ("FLASHINFER_MLA_SPARSE_SM90", "9.0", "auto", "0.30"),
        ("FLASH_ATTN_MLA_SPARSE_FA4", "10.0", "auto", "0.33"),
    ],
)
def test_a_backend_comes_with_its_version(backend: str, capability: str, dtype: str, first: str) -> None:
    for version in ("0.28.0", "0.29.9", "0.30.0", "0.32.9", "0.33.9"):
        assert takes(version, capability, dtype, backend) == (version >= first), version


@pytest.mark.parametrize("version", ["0.27.9", "0.34.0"])
def test_a_version_that_was_not_read_is_unknown_but_for_what_the_image_brings(version: str) -> None:
    asked = deployed(engine={"vllm": version})
    text = f"attention-backend unknown: the sparse-MLA backends of vLLM {version} are not known"
    assert said(check_attention_backend, asked, on("9.0")) == [text]
    brought = replace(asked, engine=replace(asked.engine, provides=Provides(("OWN",), ("9.0",), ())))
    assert said(check_attention_backend, brought, on("9.0")) == []
    assert said(check_attention_backend, brought, on("9.0", "8.0")) == [text]


@pytest.mark.parametrize(
    ("provides", "named", "fits"),
    [
        (Provides(("OWN",), ("8.0",), ()), None, True),
        (Provides(("OWN",), ("8.0",), ()), "own", True),
        (Provides(("OWN",), ("8.0",), ()), "AUTO", True),
        (Provides(("OWN",), ("8.0",), ()), "FLASHMLA_SPARSE", False),
        (Provides(("OWN",), ("8.6",), ()), None, False),
        (Provides((), ("8.0",), ()), None, False),
    ],
)
def test_what_the_image_brings_counts_on_the_cards_that_it_names(
    provides: Provides, named: str | None, fits: bool
) -> None:
    asked = deployed(*([f"--attention-backend {named}"] if named else []), engine={"provides": provides})
    assert (said(check_attention_backend, asked, on("8.0")) == []) == fits


def test_each_kind_of_card_is_judged_once() -> None:
    found = said(check_attention_backend, deployed(), on("8.0", "9.0", "7.5", "8.0"))
    assert [text.split("capability ")[1][:3] for text in found] == ["7.5", "8.0"]
    none = said(check_attention_backend, deployed(), on())
    assert none == ["attention-backend unknown: the compute capability of the cards is not known"]


def test_a_card_without_a_backend_is_named_with_the_way_out() -> None:
    asked = deployed()
    assert said(check_attention_backend, asked, on("8.0")) == [
        "attention-backend reject: engine:1.0 has no sparse-MLA attention backend for compute capability 8.0, "
        "which GlmMoeDsaForCausalLM needs"
    ]
    assert said(check_attention_backend, deployed(engine={"image": None}), on("8.0"))[0].startswith(
        "attention-backend reject: this engine has no"
    )
    named = deployed("--attention-backend FLASHINFER_MLA_SPARSE")
    assert said(check_attention_backend, named, on("9.0")) == [
        "attention-backend reject: FLASHINFER_MLA_SPARSE does not run on compute capability 9.0, as "
        "GlmMoeDsaForCausalLM needs it"
    ]
    assert fixes(check_attention_backend, named, on("9.0")) == [
        "leave attention_backend out, or use FLASHINFER_MLA_SPARSE_SM90, FLASHMLA_SPARSE, FLASH_ATTN_MLA_SPARSE"
    ]
    assert "has no sparse-MLA" in said(check_attention_backend, named, on("8.0"))[0]


def test_a_format_that_no_backend_takes_is_named_with_who_decided_it() -> None:
    (by_flag,) = said(check_attention_backend, deployed("--kv-cache-dtype int8"), on("9.0"))
    assert by_flag == (
        "attention-backend reject: no sparse-MLA backend for compute capability 9.0 takes KV dtype int8 "
        "(kv_cache_dtype)"
    )
    forced = on("9.0", shape=ModelShape("c", quantisation=Quantisation("q", kv_cache_dtype="int8")))
    for flags in ((), ("--kv-cache-dtype auto",)):
        (by_checkpoint,) = said(check_attention_backend, deployed(*flags), forced)
        assert by_checkpoint.endswith("takes KV dtype int8 (the checkpoint)")
    assert said(check_attention_backend, deployed("--kv-cache-dtype fp8"), forced) == []
    silent = on("9.0", shape=ModelShape("c", quantisation=Quantisation("q")))
    assert said(check_attention_backend, deployed(), silent) == []


@pytest.mark.parametrize(
    ("size", "fits"),
    [(None, True), ("0", False), ("64", True), ("128", True), ("63", False), ("65", False), ("x", True)],
)
def test_sparse_kernels_read_pages_of_64(size: str | None, fits: bool) -> None:
    flags = [] if size is None else [f"--block-size {size}"]
    text = f"attention-backend reject: block size {size} is not a multiple of 64"
    assert said(check_attention_backend, deployed(*flags), on("9.0")) == ([] if fits else [text])
    assert said(check_attention_backend, deployed(*flags), Facts()) == []


@pytest.mark.parametrize("dtype", ["fp8_ds_mla", "nvfp4_ds_mla"])
def test_latent_formats_need_a_latent_model(dtype: str) -> None:
    asked = deployed(f"--kv-cache-dtype {dtype}")
    gqa = Facts(shape=ModelShape("c", "Llama", kv_heads=8))
    start = f"attention-backend reject: {dtype} is a layout of latent (MLA) caches, and"
    assert said(check_attention_backend, asked, gqa) == [f"{start} Llama has none"]
    nameless = Facts(shape=ModelShape("c", kv_heads=8))
    assert said(check_attention_backend, asked, nameless) == [f"{start} the model has none"]
    for shape in (ModelShape("c", "Glm", kv_heads=8, mla=True), ModelShape("c", "X"), None):
        assert said(check_attention_backend, asked, Facts(shape=shape)) == []
    assert said(check_attention_backend, deployed("--kv-cache-dtype fp8"), gqa) == []
    assert said(check_attention_backend, replace(asked, engine=replace(asked.engine, platform="cpu")), gqa) == []
    assert said(check_attention_backend, replace(asked, engine=replace(asked.engine, command=())), gqa) == []


def test_four_bits_need_cards_of_10() -> None:
    asked = deployed("--kv-cache-dtype nvfp4_ds_mla")
    text = "attention-backend reject: nvfp4_ds_mla needs compute capability 10.x, and the cards of this host have {}"
    for capabilities, old in ((("10.0",), ""), (("10.3", "9.0"), "9.0"), (("11.0", "9.0"), "11.0, 9.0")):
        facts = replace(on(*capabilities), model=None)
        assert said(check_attention_backend, asked, facts) == ([text.format(old)] if old else [])
    brought = replace(asked, engine=replace(asked.engine, provides=Provides(("OWN",), ("9.0",), ())))
    assert said(check_attention_backend, brought, replace(on("9.0"), model=None)) == []
    packed = deployed("--kv-cache-dtype fp8_ds_mla")
    assert said(check_attention_backend, packed, replace(on("8.0"), model=None)) == []


@pytest.mark.parametrize(
    ("flag", "name", "found"),
    [
        ("--attention-backend", "FLASHMLA_SPARSE", None),
        ("--attention-backend", "flashmla_sparse", None),
        ("--attention-backend", "auto", None),
        ("--attention-backend", "OWN", None),
        ("--attention-backend", "FLASH_MLA_SPARSE", "FLASH_MLA_SPARSE"),
        ("--attention-config.backend", "flash_mla_sparse", "FLASH_MLA_SPARSE"),
        ("--attention-config.backend", "TRITON_ATTN", None),
    ],
)
def test_a_named_backend_is_the_engines_or_the_images(flag: str, name: str, found: str | None) -> None:
    asked = deployed(f"{flag} {name}", engine={"provides": Provides(("OWN",), (), ())})
    facts = Facts(engine=EngineFacts(TABLE))
    text = f"attention-backend reject: vLLM 0.30.0 has no attention backend {found}"
    assert said(check_attention_backend, asked, facts) == ([text] if found else [])
    bare = replace(TABLE, attention_backends=())
    for other in (Facts(), Facts(engine=EngineFacts(None)), Facts(engine=EngineFacts(bare))):
        assert said(check_attention_backend, asked, other) == []


def test_the_nearest_backend_is_named() -> None:
    facts = Facts(engine=EngineFacts(TABLE))
    declare = "engine.provides: {attention_backends: [%s]} where the image brings it"
    near = fixes(check_attention_backend, deployed("--attention-backend FLASHMLA_SPARS"), facts)
    assert near == ["did you mean FLASHMLA_SPARSE? Or " + declare % "FLASHMLA_SPARS"]
    assert fixes(check_attention_backend, deployed("--attention-backend ZZZ"), facts) == [declare % "ZZZ"]


def test_cards_of_the_host_come_before_those_of_the_layout() -> None:
    asked = deployed(hardware=(8, "9.0", 80.0))
    assert capabilities_of(asked, Facts()) == (("9.0",), "hardware: of the layout")
    assert capabilities_of(asked, on("8.0", "", "10.0")) == (("10.0", "8.0"), "the cards of this host")
    assert capabilities_of(asked, on("")) == (("9.0",), "hardware: of the layout")
    assert capabilities_of(deployed(), Facts())[0] == ()
    assert [major_of(text) for text in ("9.0", "12.1", "10", "x.1", "")] == [9, 12, 10, None, None]
