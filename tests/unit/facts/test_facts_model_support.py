"""What is read of a model beyond its sizes: schedules of shared indices, overrides, groups, layers of its own draft."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.facts.model import IndexRule, model_facts_from_config
from shardwright.facts.shape import model_shape
from shardwright.plan.index_sharing import full_layers

HY: dict[str, Any] = {"architectures": ["HYV4ForCausalLM"], "num_hidden_layers": 10}


def test_hy_v4_shares_indices_where_its_config_is_silent() -> None:
    rule = model_facts_from_config(HY, "c").index_rule
    assert rule is not None and full_layers(rule, 10) == (0, 1, 5, 9)
    other_keys = model_facts_from_config({**HY, "index_topk_freq": 1, "index_topk_pattern": "F" * 10}, "c")
    assert other_keys.index_rule == rule
    types = model_facts_from_config({**HY, "indexer_types": ["full"] * 10}, "c").index_rule
    assert types is not None and len(full_layers(types, 10)) == 10
    assert model_facts_from_config({**HY, "index_topk": 0}, "c").index_rule is None


def test_another_architecture_without_a_top_k_has_no_indices() -> None:
    glm = {**HY, "architectures": ["GlmMoeDsaForCausalLM"], "index_topk_freq": 4}
    assert model_facts_from_config(glm, "c").index_rule is None
    assert model_facts_from_config({**glm, "index_topk": 64}, "c").index_rule == IndexRule(4, 2)


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ({}, ()),
        ({"num_hidden_layers": 4}, ()),
        ({"index_topk_freq": 1}, ("index_topk_freq=1",)),
        ({"text_config": {"index_skip_topk_offset": 4}}, ("index_skip_topk_offset=4",)),
        (
            {"index_topk_pattern": "FS", "indexer_types": ["full"], "index_topk_freq": 2},
            ("index_topk_freq=2", "index_topk_pattern", "indexer_types"),
        ),
        ({"index_topk_freq": None}, ()),
    ],
)
def test_overrides_of_the_schedule_are_told(overrides: dict[str, Any], found: tuple[str, ...]) -> None:
    assert model_shape({}, "c", overrides).index_overrides == found


def test_four_bit_floats_have_groups_of_16_where_nothing_is_said() -> None:
    for given, group in (({}, 16), ({"group_size": 32}, 32)):
        shape = model_shape({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", **given}}, "c")
        assert shape.quantisation is not None and shape.quantisation.group_size == group
    eight = model_shape({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "c")
    assert eight.quantisation is not None and eight.quantisation.group_size is None


def test_no_layers_of_a_draft_is_not_the_same_as_silence() -> None:
    assert model_shape({"num_nextn_predict_layers": 0}, "c").mtp_layers == 0
    assert model_shape({}, "c").mtp_layers is None
