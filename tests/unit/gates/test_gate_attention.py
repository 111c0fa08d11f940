"""`attention-backend`: a sparse-MLA model on cards that no backend of the engine takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.gates.finding import Finding
from tests.unit.helpers import GLM, findings, request_for

STOCK = "engine: {image: 'vllm/vllm-openai:v0.30.0', provides: null, vllm: '%s'}\n"


def judged(root: Path, capability: str | None, version: str = "0.30.0", extra: str | None = None) -> list[Finding]:
    hardware = "hardware: null\n"
    if capability is not None:
        hardware = f'hardware: {{gpus: 8, compute_capability: "{capability}", memory_gib: 79.25}}\n'
    return findings(
        request_for(root, GLM + (STOCK % version if extra is None else extra) + hardware), "attention-backend"
    )


def test_a_stock_image_on_sm80_is_refused_with_the_reason_and_the_declaration_to_make(tmp_path: Path):
    (finding,) = judged(tmp_path, "8.0")
    assert finding.verdict == "reject"
    assert "vllm/vllm-openai:v0.30.0 has no sparse-MLA attention backend for compute capability 8.0" in finding.message
    assert "No valid attention backend found" in finding.why
    assert "engine.provides" in finding.fix


@pytest.mark.parametrize("capability", ["9.0", "10.0", "10.3", "12.0"])
def test_a_stock_image_is_accepted_where_it_has_a_backend(tmp_path: Path, capability: str):
    assert [finding.verdict for finding in judged(tmp_path, capability) if finding.verdict == "reject"] == []


@pytest.mark.parametrize("capability", ["7.5", "8.6", "8.9", "11.0"])
def test_cards_that_no_stock_backend_takes_are_refused(tmp_path: Path, capability: str):
    assert "reject" in [finding.verdict for finding in judged(tmp_path, capability)]


def test_an_image_that_declares_a_backend_for_these_cards_is_accepted(tmp_path: Path):
    assert judged(tmp_path, "8.0", extra="") == []


def test_a_declaration_for_other_cards_does_not_count(tmp_path: Path):
    assert [finding.verdict for finding in judged(tmp_path, "8.6", extra="")] == ["reject"]


def test_another_image_by_override_loses_the_declaration_and_is_refused(tmp_path: Path):
    request = request_for(tmp_path, GLM, {"IMAGE": "vllm/vllm-openai:v0.30.0"})
    assert "reject" in [finding.verdict for finding in findings(request, "attention-backend")]


def test_cards_that_nobody_named_are_unknown(tmp_path: Path):
    assert "unknown" in [finding.verdict for finding in judged(tmp_path, None)]


def test_an_engine_that_nobody_read_is_unknown(tmp_path: Path):
    assert [finding.verdict for finding in judged(tmp_path, "8.0", "0.40.0")] == ["unknown"]
