"""Borders of quantisation: the method that is asked for, the checkpoint's, and what the cards compute with."""

from __future__ import annotations

import pytest
from deployed import deployed, said
from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.facts.shape import ModelShape, Quantisation
from shardwright.gates.quantisation import check_quantisation


def on(capability: str, method: str | None = None) -> Facts:
    quant = None if method is None else Quantisation(method)
    return Facts(gpus=(Gpu("card", capability, 80.0),), shape=ModelShape("config.json", quantisation=quant))


LEAST = {
    "6.0": ("gptq", "gptq_marlin", "auto_gptq", "marlin"),
    "7.0": ("moe_wna16", "quark"),
    "7.5": (
        *("awq", "AWQ", "awq_marlin", "auto_awq", "compressed-tensors", "fp8", "deepseek_v4_fp8", "humming", "torchao"),
        *("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "mxfp8"),
    ),
    "8.0": ("experts_int8", "fbgemm_fp8"),
    "10.0": ("fp_quant",),
    "0.0": ("something", "mxfp4", "gpt_oss_mxfp4", "inc", ""),
}
CARDS = ("0.0", "5.2", "6.0", "6.1", "7.0", "7.5", "8.0", "9.0", "10.0", "12.1")


@pytest.mark.parametrize(("least", "method"), [(least, name) for least, names in LEAST.items() for name in names])
def test_a_method_starts_on_its_least_card(least: str, method: str) -> None:
    for card in CARDS:
        old = tuple(map(int, card.split("."))) < tuple(map(int, least.split(".")))
        text = (
            f"quantisation by {method.lower()} needs compute capability {least}, and the cards of this host have {card}"
        )
        wanted = [f"quantisation reject: {text}"] if old else []
        assert said(check_quantisation, deployed(), on(card, method)) == wanted
        assert said(check_quantisation, deployed(*([f"--quantization {method}"] if method else [])), on(card)) == (
            wanted if method else []
        )


def test_where_nothing_is_quantised_or_known_nothing_is_said() -> None:
    assert said(check_quantisation, deployed(), on("5.0")) == said(check_quantisation, deployed(), Facts()) == []
    old = on("7.0", "awq")
    assert said(check_quantisation, deployed(engine={"platform": "cpu"}), old) == []
    for version, read in (("0.27.9", False), ("0.28.0", True), ("0.33.9", True), ("0.34.0", False)):
        assert bool(said(check_quantisation, deployed(engine={"vllm": version}), old)) == read
    assert said(check_quantisation, deployed(), replace(old, gpus=(Gpu("card", "x", 80.0),))) == []


@pytest.mark.parametrize(
    ("method", "scheme", "refused"),
    [
        ("fp8", None, True),
        ("deepseek_v4_fp8", None, True),
        ("modelopt_fp4", None, True),
        ("compressed-tensors", None, False),
        ("compressed-tensors", "fp8", True),
        ("awq", None, False),
        ("fbgemm_fp8", None, False),
    ],
)
def test_an_e5m2_cache_does_not_go_with_scales_of_another(method: str, scheme: str | None, refused: bool) -> None:
    facts = replace(on("9.0"), shape=ModelShape("c", quantisation=Quantisation(method, kv_cache_dtype=scheme)))
    text = f"quantisation reject: kv_cache_dtype fp8_e5m2 does not go with weights quantised by {method}"
    assert said(check_quantisation, deployed("--kv-cache-dtype fp8_e5m2"), facts) == ([text] if refused else [])
    for dtype in ("fp8", "auto", "fp8_e4m3"):
        assert said(check_quantisation, deployed(f"--kv-cache-dtype {dtype}"), facts) == []
    online = deployed("--kv-cache-dtype fp8_e5m2", f"--quantization {method}")
    assert bool(said(check_quantisation, online, on("9.0"))) == (refused and scheme is None)


@pytest.mark.parametrize(
    ("asked", "stored", "differs"),
    [
        ("gptq", "awq", True),
        ("fp8", "awq", True),
        ("compressed-tensors", "fp8", True),
        ("modelopt_fp4", "fp8", True),
        ("fp8", "modelopt", True),
        ("mxfp4", "fp8", True),
        ("fp8", "gpt_oss_mxfp4", True),
        ("quark", "fbgemm_fp8", True),
        ("awq", "awq", False),
        ("awq_marlin", "awq", False),
        ("gptq_marlin", "gptq", False),
        ("mxfp4", "gpt_oss_mxfp4", False),
        ("deepseek_v4_fp8", "fp8", False),
        ("moe_wna16", "gptq", False),
        ("humming", "fp8", False),
        ("inc", "gptq", False),
        ("own", "awq", False),
        ("awq", "own", False),
        ("awq", "", False),
    ],
)
def test_another_method_than_the_checkpoints_is_refused(asked: str, stored: str, differs: bool) -> None:
    text = f"quantisation reject: quantization {asked} is asked for, and the checkpoint is quantised by {stored}"
    facts = on("10.0", stored or None)
    assert said(check_quantisation, deployed(f"--quantization {asked}"), facts) == ([text] if differs else [])
    if differs:
        (found,) = check_quantisation(deployed(f"--quantization {asked}"), None, facts)  # type: ignore[arg-type]
        assert found.evidence == "config.json"
