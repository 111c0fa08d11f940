"""Borders of named MoE backends: the cards on which their kernels exist."""

from __future__ import annotations

import pytest
from deployed import deployed, said
from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.gates.moe_backends import check_moe_backend

CARDS = ("7.0", "7.5", "8.0", "8.9", "9.0", "9.1", "10.0", "10.3", "11.0", "12.0", "12.1", "13.0")
TENS, TWELVES = ("10.0", "10.3"), ("12.0", "12.1")
BACKENDS = {
    "flashinfer_trtllm": TENS,
    "flashinfer_cutedsl": TENS,
    "flashinfer_cutlass": ("9.0", *TENS, "11.0", *TWELVES),
    "flashinfer_b12x": TWELVES,
    "b12x": TWELVES,
    "marlin": CARDS[1:],
    "humming": CARDS[1:],
    "triton": CARDS,
    "auto": CARDS,
    "Flashinfer-TRTLLM": TENS,
}


def on(*cards: str) -> Facts:
    return Facts(gpus=tuple(Gpu("card", card, 80.0) for card in cards))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_runs_on_its_own_cards_only(backend: str) -> None:
    name = backend.lower().replace("-", "_")
    for card in CARDS:
        text = f"moe-backend reject: the MoE backend {name} does not run on compute capability {card}"
        found = said(check_moe_backend, deployed(f"--moe-backend {backend}"), on(card))
        assert found == ([] if card in BACKENDS[backend] else [text]), card


def test_what_is_not_known_is_not_judged() -> None:
    asked = deployed("--moe-backend b12x")
    assert said(check_moe_backend, deployed(), on("9.0")) == said(check_moe_backend, asked, Facts()) == []
    assert said(check_moe_backend, asked, on("x")) == []
    assert said(check_moe_backend, replace(asked, engine=replace(asked.engine, platform="cpu")), on("9.0")) == []
    for version, read in (("0.27.9", False), ("0.28.0", True), ("0.33.9", True), ("0.34.0", False)):
        known = replace(asked, engine=replace(asked.engine, vllm=version))
        assert bool(said(check_moe_backend, known, on("9.0"))) == read
    (both,) = said(check_moe_backend, asked, on("9.0", "8.0", "12.0"))
    assert both.endswith("compute capability 8.0, 9.0")
