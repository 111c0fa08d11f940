"""Borders of dense attention backends: kinds of model, cards, KV formats, block sizes, sinks, decode contexts."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said
from msgspec.structs import replace

from shardwright.facts.attention import AttentionFacts
from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.facts.model import ModelFacts
from shardwright.facts.shape import ModelShape, Quantisation
from shardwright.gates.dense_attention import check_dense_attention
from shardwright.layout.schema import Provides
from shardwright.resolve.deployment import Deployment

CARDS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1", "12.2")
VERSIONS = ("0.27.9", "0.28.0", "0.29.9", "0.30.0", "0.31.9", "0.32.0", "0.33.9", "0.34.0")
PLAIN = ("auto", "float16", "bfloat16")
TURBO = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
FORMATS = (
    *PLAIN,
    *("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int4_per_token_head", "int8_per_token_head"),
    *("nvfp4", "nvfp4_4over6", "fp8_ds_mla", "nvfp4_ds_mla"),
    *TURBO,
)


def facts(architecture: str, *cards: str, mla: bool = False, **changes: Any) -> Facts:
    kind = AttentionFacts("mla" if mla else "gqa")
    model = ModelFacts("c", architecture, "x", 4, 0, 64, 1000, None, None, False, kind)
    shape = ModelShape("c", architecture, heads=64, mla=mla)
    gpus = tuple(Gpu("card", card, 80.0) for card in cards) or None
    return replace(Facts(model=model, shape=shape, gpus=gpus), **changes)


def llama(*cards: str, **changes: Any) -> Facts:
    return facts("LlamaForCausalLM", *cards, **changes)


def deepseek(*cards: str, **changes: Any) -> Facts:
    return facts("DeepseekV3ForCausalLM", *cards, mla=True, **changes)


def asked(backend: str | None = None, *flags: str, version: str = "0.30.0", **changes: Any) -> Deployment:
    named = [f"--attention-backend {backend}"] if backend else []
    return deployed(*named, *flags, engine={"vllm": version, **changes.pop("engine", {})}, **changes)


def taken(deployment: Deployment, known: Facts) -> bool:
    found = said(check_dense_attention, deployment, known)
    assert all(text.startswith("attention-backend reject") for text in found)
    return not found


# What each backend takes: (backend, kind of model) to cards, formats on each.
FP8 = ("fp8", "fp8_e4m3")
FP8_ANY = (*FP8, "fp8_e5m2")
PER_TOKEN = ("int4_per_token_head", "int8_per_token_head")
PLAIN_BACKENDS = {
    "FLASH_ATTN": {
        **dict.fromkeys(CARDS[1:], PLAIN),
        **dict.fromkeys(("9.0", "10.0", "10.3"), (*PLAIN, *FP8)),
    },
    "FLASHINFER": {
        **dict.fromkeys(CARDS[1:-1], (*PLAIN, *FP8_ANY)),
        **dict.fromkeys(("10.0", "10.3"), (*PLAIN, *FP8_ANY, "nvfp4", "nvfp4_4over6")),
    },
    "TRITON_ATTN": {
        **dict.fromkeys(CARDS, (*PLAIN, *PER_TOKEN)),
        **dict.fromkeys(CARDS[3:], (*PLAIN, *PER_TOKEN, *FP8_ANY, "fp8_per_token_head")),
    },
    "FLEX_ATTENTION": dict.fromkeys(CARDS, PLAIN),
    "TURBOQUANT": dict.fromkeys(CARDS, TURBO),
    "B12X": dict.fromkeys(("12.0", "12.1"), ("auto", "bfloat16", *FP8)),
}
LATENT_BACKENDS = {
    "FLASHMLA": {"9.0": (*PLAIN, *FP8)},
    "FLASH_ATTN_MLA": {"9.0": PLAIN},
    "FLASHINFER_MLA": dict.fromkeys(("10.0", "10.3"), (*PLAIN, *FP8)),
    "CUTLASS_MLA": dict.fromkeys(("10.0", "10.3"), (*PLAIN, *FP8)),
    "TOKENSPEED_MLA": dict.fromkeys(("10.0", "10.3"), FP8),
    "TRITON_MLA": {**dict.fromkeys(CARDS, PLAIN), **dict.fromkeys(CARDS[3:], (*PLAIN, *FP8))},
}
# Formats of latent caches are refused elsewhere for plain attention.
ELSEWHERE = ("fp8_ds_mla", "nvfp4_ds_mla")


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_a_plain_backend_takes_its_own_cards_and_formats_only(backend: str) -> None:
    for card in CARDS:
        wanted = PLAIN_BACKENDS[backend].get(card, ())
        for dtype in FORMATS:
            fits = dtype in wanted or (bool(wanted) and dtype in ELSEWHERE)
            assert taken(asked(backend, f"--kv-cache-dtype {dtype}"), llama(card)) == fits, (card, dtype)
        assert not taken(asked(backend), deepseek(card))


@pytest.mark.parametrize("backend", LATENT_BACKENDS)
def test_a_latent_backend_takes_its_own_cards_and_formats_only(backend: str) -> None:
    for card in CARDS:
        wanted = LATENT_BACKENDS[backend].get(card, ())
        for dtype in FORMATS:
            fits = dtype in wanted
            assert taken(asked(backend, f"--kv-cache-dtype {dtype}"), deepseek(card)) == fits, (card, dtype)
        assert not taken(asked(backend), llama(card))


def test_unasked_the_engine_takes_any_that_fits_but_the_ones_to_be_asked_for() -> None:
    for card in CARDS:
        for known, backends in ((llama(card), PLAIN_BACKENDS), (deepseek(card), LATENT_BACKENDS)):
            for dtype in FORMATS:
                if known.model is not None and known.model.architecture.startswith("Llama") and dtype in ELSEWHERE:
                    continue
                any_fits = any(dtype in on.get(card, ()) for name, on in backends.items() if name != "B12X")
                for name in (None, "auto"):
                    assert taken(asked(name, f"--kv-cache-dtype {dtype}"), known) == any_fits, (card, dtype)


@pytest.mark.parametrize(
    ("backend", "card", "dtype", "versions"),
    [
        ("B12X", "12.0", "auto", VERSIONS[3:7]),
        ("FLASHINFER", "9.0", "fp8", VERSIONS[1:7]),
        ("FLASHINFER", "8.0", "nvfp4", VERSIONS[5:7]),
        ("FLASHINFER", "9.0", "nvfp4", VERSIONS[5:7]),
        ("FLASHINFER", "12.0", "nvfp4", VERSIONS[5:7]),
        ("FLASHINFER", "12.1", "nvfp4", VERSIONS[5:7]),
        ("FLASHINFER", "11.0", "nvfp4", ()),
        ("FLASHINFER", "12.2", "nvfp4", ()),
        ("FLASHINFER", "7.5", "nvfp4", ()),
        ("FLASHINFER", "9.0", "nvfp4_4over6", ()),
    ],
)
def test_some_formats_came_with_a_version(backend: str, card: str, dtype: str, versions: tuple[str, ...]) -> None:
    for version in VERSIONS[1:7]:
        fits = version in versions
        given = asked(backend, f"--kv-cache-dtype {dtype}", version=version)
        # A version that has no such backend at all does not have its flag value either, which is judged elsewhere.
        assert taken(given, llama(card)) == (fits or (backend == "B12X" and version < "0.30")), version


def test_versions_that_were_not_read_are_not_judged() -> None:
    for version in VERSIONS:
        read = "0.28" <= version[:4] < "0.34"
        assert taken(asked("FLASHMLA", version=version), llama("9.0")) == (not read)


@pytest.mark.parametrize(
    ("backend", "card", "least"),
    [
        *(("FLASH_ATTN", card, 16) for card in ("8.0", "9.0", "12.0")),
        *(("FLASHINFER", card, 16) for card in ("8.0", "9.0", "10.0")),
        ("TRITON_ATTN", "9.0", 16),
        ("FLEX_ATTENTION", "9.0", 16),
        ("B12X", "12.0", 64),
        ("FLASHMLA", "9.0", 64),
        ("FLASH_ATTN_MLA", "9.0", 16),
        ("FLASHINFER_MLA", "10.0", 32),
        ("CUTLASS_MLA", "10.0", 128),
        ("TRITON_MLA", "9.0", 16),
    ],
)
def test_block_sizes_are_multiples_of_what_the_kernel_takes(backend: str, card: str, least: int) -> None:
    known = deepseek(card) if "MLA" in backend else llama(card)
    for size in (0, least // 2, least, least + 1, 3 * least):
        fits = size in (least, 3 * least)
        assert taken(asked(backend, f"--block-size {size}"), known) == fits, size
    assert taken(asked(backend, "--block-size x"), known)
    text = f"attention-backend reject: {backend} takes no block size 1 on compute capability {card}"
    assert said(check_dense_attention, asked(backend, "--block-size 1"), known) == [text]
    assert fixes(check_dense_attention, asked(backend, "--block-size 1"), known) == [f"a multiple of {least}"]


def test_blocks_are_those_of_the_backends_that_take_the_format() -> None:
    # On 10.x only TOKENSPEED_MLA, FLASHINFER_MLA and TRITON_MLA take fp8 with blocks below 128.
    for size, fits in ((8, False), (16, True), (32, True)):
        assert taken(asked(None, f"--block-size {size}", "--kv-cache-dtype fp8"), deepseek("10.0")) == fits
    assert taken(asked("TOKENSPEED_MLA", "--block-size 32", "--kv-cache-dtype fp8"), deepseek("10.0"))
    assert not taken(asked("TOKENSPEED_MLA", "--block-size 16", "--kv-cache-dtype fp8"), deepseek("10.0"))
    assert taken(asked("TURBOQUANT", "--block-size 16", f"--kv-cache-dtype {TURBO[0]}"), llama("9.0"))
    assert not taken(asked("TURBOQUANT", "--block-size 8", f"--kv-cache-dtype {TURBO[0]}"), llama("9.0"))
    hybrid = llama("9.0")
    assert hybrid.shape is not None
    mixed = replace(hybrid, shape=replace(hybrid.shape, full_attention=(True, False)))
    assert taken(asked(None, "--block-size 8"), mixed)


@pytest.mark.parametrize(
    ("backend", "takes"),
    [
        ("FLASH_ATTN", ("9.0", "10.0", "10.3")),
        ("FLASHINFER", ("9.0", "10.0", "10.3", "11.0", "12.0", "12.1")),
        ("TRITON_ATTN", CARDS),
        ("FLEX_ATTENTION", ()),
        ("B12X", ("12.0", "12.1")),
    ],
)
def test_attention_sinks_need_a_backend_that_has_them(backend: str, takes: tuple[str, ...]) -> None:
    for card in CARDS:
        runs = card in PLAIN_BACKENDS[backend]
        assert taken(asked(backend), facts("GptOssForCausalLM", card)) == (card in takes), card
        assert taken(asked(), facts("GptOssForCausalLM", card))
        assert taken(asked(backend), llama(card)) == runs
    old = asked("FLASHINFER", version="0.29.9")
    text = "FLASHINFER takes no attention sinks (of GptOssForCausalLM) on compute capability 9.0"
    assert said(check_dense_attention, old, facts("GptOssForCausalLM", "9.0")) == [f"attention-backend reject: {text}"]
    for dtype in ("fp8_per_token_head", "fp8"):
        assert taken(asked("TRITON_ATTN", f"--kv-cache-dtype {dtype}"), facts("GptOssForCausalLM", "9.0"))
    assert taken(asked("FLASHINFER", "--kv-cache-dtype nvfp4"), facts("GptOssForCausalLM", "10.0"))
    four_bits = asked("FLASHINFER", "--kv-cache-dtype nvfp4", version="0.32.0")
    for card in ("8.0", "9.0", "12.0"):
        assert taken(four_bits, llama(card)) and not taken(four_bits, facts("GptOssForCausalLM", card))


DCP = "--decode-context-parallel-size {}"


def test_decode_context_parallelism_needs_the_sum_of_the_softmax() -> None:
    for backend, on in PLAIN_BACKENDS.items():
        card, dtype = next((card, formats[0]) for card, formats in reversed(on.items()))
        given = f"--kv-cache-dtype {dtype}"
        fits = backend in ("FLASH_ATTN", "FLASHINFER")
        assert taken(asked(backend, given, DCP.format(2)), llama(card)) == fits, backend
        assert taken(asked(backend, given, DCP.format(1)), llama(card))
    for backend, on in LATENT_BACKENDS.items():
        card, dtype = next((card, formats[0]) for card, formats in on.items())
        assert taken(asked(backend, f"--kv-cache-dtype {dtype}", DCP.format(2)), deepseek(card))
    assert taken(asked("FLASHINFER", DCP.format(2), version="0.28.0"), llama("9.0"))
    per_token = asked("TRITON_ATTN", "--kv-cache-dtype fp8_per_token_head", DCP.format(2))
    assert not taken(per_token, llama("9.0"))
    text = "attention-backend reject: no attention backend takes decode context parallelism on compute capability 7.5"
    assert said(check_dense_attention, asked(None, DCP.format(2)), llama("7.5")) == [text]


def test_a_backend_of_another_kind_is_named_with_those_of_the_right_one() -> None:
    text = "FLASHMLA serves latent (MLA) attention only, and LlamaForCausalLM has plain attention"
    assert said(check_dense_attention, asked("flashmla"), llama("9.0")) == [f"attention-backend reject: {text}"]
    (fix,) = fixes(check_dense_attention, asked("flashmla"), llama("9.0"))
    assert fix == (
        "leave attention_backend out, or use B12X, FLASHINFER, FLASH_ATTN, FLEX_ATTENTION, TRITON_ATTN, TURBOQUANT"
    )
    other = (
        "attention-backend reject: FLASH_ATTN serves plain attention only, and DeepseekV3ForCausalLM has latent (MLA)"
    )
    assert said(check_dense_attention, asked("FLASH_ATTN"), deepseek())[0].startswith(other)
    sparse = "attention-backend reject: FLASHMLA_SPARSE serves sparse attention only, and LlamaForCausalLM has none"
    assert said(check_dense_attention, asked("FLASHMLA_SPARSE"), llama("9.0")) == [sparse]
    assert fixes(check_dense_attention, asked("FLASHMLA_SPARSE"), llama()) == ["leave attention_backend out"]
    nameless = facts("", "9.0")
    assert said(check_dense_attention, asked("FLASHMLA"), nameless)[0].endswith("and the model has plain attention")


def test_a_card_that_it_does_not_run_on_is_named_with_those_that_do() -> None:
    text = "attention-backend reject: FLASH_ATTN does not run on compute capability 7.5"
    assert said(check_dense_attention, asked("FLASH_ATTN"), llama("7.5", "8.0")) == [text]
    assert fixes(check_dense_attention, asked("FLASH_ATTN"), llama("7.5")) == [
        "leave attention_backend out, or use FLEX_ATTENTION, TRITON_ATTN, TURBOQUANT"
    ]
    assert fixes(check_dense_attention, asked("FLASHMLA"), deepseek("8.0")) == [
        "leave attention_backend out, or use TRITON_MLA"
    ]
    assert taken(asked("FLASH_ATTN"), llama("x"))


def test_a_format_is_named_with_who_decided_it() -> None:
    text = "no attention backend takes KV dtype fp8_e5m2 (kv_cache_dtype) on compute capability 9.0"
    found = said(check_dense_attention, asked(None, "--kv-cache-dtype fp8_e5m2"), deepseek("9.0"))
    assert found == [f"attention-backend reject: {text}"]
    known = llama("8.0")
    assert known.shape is not None
    forced = replace(known, shape=replace(known.shape, quantisation=Quantisation("q", kv_cache_dtype="fp8")))
    (found,) = said(check_dense_attention, asked("FLASH_ATTN"), forced)
    assert found.endswith("FLASH_ATTN takes no KV dtype fp8 (the checkpoint) on compute capability 8.0")
    (finding,) = check_dense_attention(asked("FLASH_ATTN"), None, forced)  # type: ignore[arg-type]
    assert finding.why.endswith("it has auto, bfloat16, float16")
    for dtype in ("ultraquant_4bit", "int8"):
        assert taken(asked("FLASH_ATTN", f"--kv-cache-dtype {dtype}"), llama("9.0"))


def test_without_cards_only_what_holds_on_all_is_said() -> None:
    assert taken(asked("FLASHINFER", "--kv-cache-dtype nvfp4"), llama())
    (found,) = said(check_dense_attention, asked("FLASH_ATTN", "--kv-cache-dtype nvfp4"), llama())
    assert found == "attention-backend reject: FLASH_ATTN takes no KV dtype nvfp4 (kv_cache_dtype)"
    assert not taken(asked(None, "--block-size 8"), llama())


@pytest.mark.parametrize(
    "known",
    [
        Facts(),
        Facts(shape=ModelShape("c", "X", heads=64)),
        replace(llama("7.5"), shape=None),
        replace(llama("7.5"), shape=ModelShape("c", "X")),
        replace(deepseek("9.0"), model=replace(deepseek().model, index_topk=2048)),
        facts("KimiK3ForCausalLM", "9.0", mla=True, model=replace(deepseek().model, architecture="K3", attention=None)),
    ],
)
def test_models_without_dense_attention_are_not_judged(known: Facts) -> None:
    assert taken(asked("FLASH_ATTN"), known)


def test_kinds_of_latent_models() -> None:
    plain = facts("Other", "9.0", mla=True)
    assert not taken(asked("FLASH_ATTN"), plain)
    assert plain.model is not None
    unknown = replace(plain, model=replace(plain.model, attention=AttentionFacts("unknown")))
    assert taken(asked("FLASH_ATTN"), unknown)
    for name in ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"):
        silent = replace(plain, model=replace(plain.model, architecture=name, attention=None))
        assert not taken(asked("FLASH_ATTN"), silent)
    disabled = asked("FLASH_ATTN", env={"VLLM_MLA_DISABLE": "1"})
    assert taken(disabled, plain)


def test_what_the_image_brings_and_other_engines_are_not_judged() -> None:
    own = {"engine": {"provides": Provides(("FLASHMLA",), ("8.0",), ())}}
    assert taken(asked("FLASHMLA", **own), deepseek("8.0"))
    e5m2 = "--kv-cache-dtype fp8_e5m2"
    assert taken(asked(None, e5m2, **own), deepseek("8.0"))
    assert not taken(asked(None, e5m2, **own), deepseek("9.0"))
    assert not taken(asked("TRITON_MLA", e5m2, **own), deepseek("8.0"))
    nothing = {"engine": {"provides": Provides((), ("8.0",), ())}}
    assert not taken(asked(None, e5m2, **nothing), deepseek("8.0"))
    assert taken(asked("FLASHMLA", engine={"platform": "cpu"}), llama("9.0"))
    assert taken(asked("FLASHMLA", engine={"command": ()}), llama("9.0"))
    assert taken(asked("CUSTOM"), llama("9.0"))


@pytest.mark.parametrize(
    ("backend", "card", "takes"),
    [
        ("FLASHINFER", "8.0", (64, 128, 256, 512)),
        ("FLASHINFER", "9.0", (64, 128, 256, 512)),
        ("FLASHINFER", "12.0", (64, 128, 256, 512)),
        ("B12X", "12.0", (64, 128, 192, 256)),
        ("FLASH_ATTN", "9.0", (64, 80, 96, 128, 192, 256, 512)),
        ("TRITON_ATTN", "9.0", (64, 80, 96, 128, 192, 256, 512)),
    ],
)
def test_some_backends_take_some_head_sizes_only(backend: str, card: str, takes: tuple[int, ...]) -> None:
    for size in (64, 80, 96, 128, 192, 256, 512):
        known = llama(card)
        assert known.model is not None
        sized = replace(known, model=replace(known.model, attention=AttentionFacts("gqa", head_dim=size)))
        assert taken(asked(backend), sized) == (size in takes), size
        assert taken(asked(), sized)
        unknown = replace(known, model=replace(known.model, attention=None))
        assert taken(asked(backend), unknown)
    text = f"attention-backend reject: FLASHINFER takes no head size 96 on compute capability {card}"
    known = replace(llama(card), model=replace(llama().model, attention=AttentionFacts("gqa", head_dim=96)))
    assert said(check_dense_attention, asked("FLASHINFER"), known) == [text]
