"""Borders of drafting: MTP layers that a model has or lacks, and schedules that a method does not go with."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import LAYOUT, deployed, fixes, said

from shardwright.facts.facts import Facts
from shardwright.facts.model import ModelFacts
from shardwright.facts.model_support import drafts_for_itself
from shardwright.facts.shape import ModelShape
from shardwright.gates.drafts import check_draft_settings
from shardwright.resolve.deployment import Deployment, Speculation


def model(architecture: str, model_type: str, layers: int = 0, stated: int | None = None) -> Facts:
    facts = ModelFacts("config.json", architecture, model_type, 4, layers, 64, 1000, None, None, False)
    return Facts(model=facts, shape=ModelShape("config.json", mtp_layers=stated))


def drafting(method: str, *flags: str, draft: str | None = None, stages: int = 1, **options: Any) -> Deployment:
    speculation = Speculation(method, method, 1, LAYOUT, draft, tuple(options.items()))
    return deployed(*flags, pipeline=stages, speculation=speculation)


@pytest.mark.parametrize(
    ("architecture", "model_type", "known"),
    [
        ("DeepseekV3ForCausalLM", "deepseek_v3", True),
        ("Glm4MoeForCausalLM", "glm4_moe", True),
        ("", "qwen3_next", True),
        ("DeepseekV41ForCausalLM", "deepseek_v41", False),
        ("LlamaForCausalLM", "llama", False),
        ("DeepseekV3ForCausalLM", "kimi_k2", False),
        ("LlamaForCausalLM", "", None),
        ("KimiK25ForConditionalGeneration", "kimi_k2", None),
    ],
)
def test_the_engine_makes_a_draft_of_some_models_only(architecture: str, model_type: str, known: bool | None) -> None:
    assert drafts_for_itself(architecture, model_type, "0.30.0") is known
    for version in ("0.27.9", "0.34.0"):
        assert drafts_for_itself(architecture, model_type, version) is (known or None)
    for version in ("0.28.0", "0.33.9"):
        assert drafts_for_itself(architecture, model_type, version) is known
    text = f"speculative reject: mtp drafts with the model's own MTP layers, and {model_type} has none"
    wanted = [text] if known is False else []
    assert said(check_draft_settings, drafting("mtp"), model(architecture, model_type)) == wanted
    own = said(check_draft_settings, drafting("mtp"), model(architecture, model_type, layers=1))
    assert own == (wanted if model_type == "deepseek_v41" else [])
    assert said(check_draft_settings, drafting("mtp", draft="a/b"), model(architecture, model_type)) == []
    assert said(check_draft_settings, drafting("ngram"), model(architecture, model_type)) == []


def test_a_config_that_says_none_has_none() -> None:
    text = "speculative reject: mtp drafts with the model's own MTP layers, and the config says it has none"
    stated = model("DeepseekV3ForCausalLM", "deepseek_v3", stated=0)
    assert said(check_draft_settings, drafting("mtp"), stated) == [text]
    assert said(check_draft_settings, drafting("mtp"), model("DeepseekV3ForCausalLM", "deepseek_v3")) == []
    assert said(check_draft_settings, drafting("mtp", draft="a/b"), stated) == []
    assert (
        said(check_draft_settings, drafting("ngram"), stated)
        == said(check_draft_settings, drafting("mtp"), Facts())
        == []
    )
    bare = Facts(model=stated.model)
    assert said(check_draft_settings, drafting("mtp"), bare) == []


@pytest.mark.parametrize(
    ("value", "stages", "refused"), [(True, 2, True), (True, 1, False), (False, 2, False), (1, 2, False)]
)
def test_adaptive_verification_stays_on_one_stage(value: Any, stages: int, refused: bool) -> None:
    text = "speculative reject: speculative.enable_adaptive_verification does not go with PP=2"
    asked = drafting("dspark", stages=stages, enable_adaptive_verification=value)
    assert said(check_draft_settings, asked) == ([text] if refused else [])


@pytest.mark.parametrize(
    ("method", "options", "culprit"),
    [
        *((name, {}, name) for name in ("ngram", "suffix")),
        ("mtp", {"disable_padded_drafter_batch": True}, "speculative.disable_padded_drafter_batch"),
        ("mtp", {"disable_padded_drafter_batch": False}, None),
        *((name, {}, None) for name in ("mtp", "ngram_gpu", "dspark", "extract_hidden_states")),
    ],
)
def test_a_method_without_async_scheduling_refuses_to_be_asked_for_it(
    method: str, options: dict[str, Any], culprit: str | None
) -> None:
    text = f"speculative reject: {culprit} does not go with async scheduling, which the layout asks for"
    assert said(check_draft_settings, drafting(method, "--async-scheduling", **options)) == ([text] if culprit else [])
    for flags in ((), ("--no-async-scheduling",)):
        assert said(check_draft_settings, drafting(method, *flags, **options)) == []


@pytest.mark.parametrize("method", ["medusa", "mlp_speculator", "custom_class"])
def test_drafts_of_old_kinds_are_not_scheduled_ahead(method: str) -> None:
    (found,) = said(check_draft_settings, drafting(method, "--async-scheduling", draft="a/b"))
    assert found.startswith(f"speculative reject: {method} does not go with async")


def test_deepseek_v4_1_is_sent_to_the_method_that_its_layers_are_of() -> None:
    facts = model("DeepseekV41ForCausalLM", "deepseek_v41", layers=1, stated=1)
    assert fixes(check_draft_settings, drafting("mtp"), facts) == ["SPEC_METHOD=dspark"]
    assert fixes(check_draft_settings, drafting("mtp"), model("", "llama")) == ["SPEC_METHOD=none, or a draft model"]
