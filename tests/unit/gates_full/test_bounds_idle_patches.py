"""Borders of patches without effect: edits of code that a model does not run on this engine."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said, shipped
from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.facts.model import ModelFacts
from shardwright.facts.served_code import idle_code
from shardwright.gates.patches import check_patches
from shardwright.overlay.patch import Patch, Reach

GENERIC = "vllm.model_executor.models.deepseek_v2"
OWN = "vllm.models.deepseek_v32"
GLM, V3 = "GlmMoeDsaForCausalLM", "DeepseekV3ForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "platform", "version", "generic", "own"),
    [
        (GLM, "cuda", "0.28.0", False, True),
        (GLM, "cuda", "0.29.9", False, True),
        (GLM, "cuda", "0.30.0", True, False),
        (GLM, "cuda", "0.33.9", True, False),
        (GLM, "cuda", "0.34.0", False, False),
        (GLM, "cuda", "0.27.9", False, False),
        (GLM, "rocm", "0.31.9", False, True),
        (GLM, "rocm", "0.32.0", True, False),
        (GLM, "cpu", "0.33.0", False, True),
        ("DeepseekV32ForCausalLM", "cuda", "0.30.0", True, False),
        (V3, "cuda", "0.30.0", False, False),
    ],
)
def test_which_of_two_implementations_is_idle(
    architecture: str, platform: str, version: str, generic: bool, own: bool
) -> None:
    def idle(module: str, symbol: str | None) -> bool:
        return idle_code(architecture, platform, version, module, symbol) is not None

    assert idle(GENERIC, "DeepseekV2MLAAttention.__init__") == idle(GENERIC, "Indexer") == generic
    assert not idle(GENERIC, "DeepseekV2ForCausalLM.forward") and not idle(GENERIC, None)
    assert idle(OWN, None) == idle(f"{OWN}.attention", "DeepseekV32Attention.__init__") == own
    assert not idle(f"{OWN}0.attention", "X") and not idle(f"{GENERIC}.below", "Indexer")


def facts(architecture: str = GLM) -> Facts:
    return Facts(model=ModelFacts("c", architecture, "x", 4, 1, 64, 1000, 2048, None, False))


def patch(required_on: tuple[str, ...] | None, **changes: Any) -> Patch:
    """One edit of the generic attention, as an author wrote it for an older engine."""
    (recompute,) = shipped("pp-index-recompute")
    edit = next(edit for edit in recompute.edits if edit.id == "gate-generic")
    places = tuple(replace(place, required_on=required_on) for place in edit.places)
    reach = Reach((GLM,), ())
    return replace(recompute, id="mine", edits=(replace(edit, places=places),), reach=reach, **changes)


@pytest.mark.parametrize(
    ("required_on", "platform", "version", "idle"),
    [
        (None, "cuda", "0.30.0", True),
        (("cuda",), "cuda", "0.30.0", True),
        (("cpu",), "cuda", "0.30.0", False),
        ((), "cuda", "0.30.0", False),
        (None, "cuda", "0.28.0", False),
        (None, "cpu", "0.30.0", False),
    ],
)
def test_an_edit_of_code_that_does_not_run_is_refused(
    required_on: tuple[str, ...] | None, platform: str, version: str, idle: bool
) -> None:
    asked = deployed(engine={"platform": platform, "vllm": version}, patches=(patch(required_on),))
    text = (
        f"patches reject: the edit gate-generic of the patch mine changes {GENERIC}:DeepseekV2MLAAttention.__init__, "
        f"which {GLM} does not run on {platform} in vLLM {version}"
    )
    assert said(check_patches, asked, facts()) == ([text] if idle else [])
    if idle:
        assert fixes(check_patches, asked, facts())[0].startswith("deploy patch check mine")
    assert said(check_patches, asked, Facts()) == []


def test_a_patch_for_other_models_is_noted() -> None:
    asked = deployed(patches=(patch(None),))
    text = f"patches info: the patch mine is for {GLM}, and the model is {V3}"
    assert said(check_patches, asked, facts(V3)) == [text]
    assert said(check_patches, asked, facts("")) == []
    anywhere = deployed(patches=(replace(patch(None), reach=Reach((), ())),))
    assert said(check_patches, anywhere, facts(V3)) == []


def test_a_patch_without_a_place_is_refused_for_that_alone() -> None:
    (found,) = said(check_patches, deployed(engine={"vllm": "0.99.0"}, patches=(patch(None),)), facts(V3))
    assert "has no edits for vLLM 0.99.0" in found


@pytest.mark.parametrize("name", ["pp-index-transport", "pp-index-recompute", "pp-cpu-eager"])
def test_the_patches_that_ship_have_their_effect(name: str) -> None:
    for version in ("0.28.0", "0.30.0", "0.32.0", "0.33.0"):
        for platform in ("cuda", "rocm", "cpu"):
            asked = deployed(engine={"platform": platform, "vllm": version}, patches=shipped(name))
            assert not any("does not run" in text for text in said(check_patches, asked, facts()))
