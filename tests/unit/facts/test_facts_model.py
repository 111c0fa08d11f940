"""What is read from a model's config, and what is refused rather than guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import DeployError
from shardwright.facts.model import IndexRule, model_facts_from_config, read_model_directory, read_model_file
from shardwright.plan.index_sharing import full_layers

CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 64,
    "vocab_size": 154880,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
}


def rule(**keys: Any) -> IndexRule:
    found = model_facts_from_config({**CONFIG, **keys}, "config.json").index_rule
    assert found is not None
    return found


def test_the_index_rule_is_not_lost():
    facts = model_facts_from_config(CONFIG, "config.json")
    assert (facts.num_layers, facts.num_mtp_layers, facts.sparse_mla) == (78, 1, True)
    assert facts.index_rule == IndexRule(freq=4, offset=3)


def test_a_null_frequency_does_not_crash_and_means_no_sharing():
    assert len(full_layers(rule(index_topk_freq=None), 78)) == 78


def test_a_null_offset_is_the_engines_default():
    assert rule(index_skip_topk_offset=None) == IndexRule(freq=4, offset=2)


def test_absent_keys_are_the_engines_defaults():
    bare = {key: value for key, value in CONFIG.items() if key not in ("index_topk_freq", "index_skip_topk_offset")}
    assert model_facts_from_config(bare, "config.json").index_rule == IndexRule(freq=1, offset=2)


def test_pattern_and_types_are_read_beside_the_frequency():
    found = rule(index_topk_pattern="FS", indexer_types=["full", "shared"])
    assert (found.pattern, found.types) == ("FS", ("full", "shared"))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV4ForCausalLM"])
def test_a_model_that_shares_no_index_has_no_rule(architecture: str):
    assert model_facts_from_config({**CONFIG, "architectures": [architecture]}, "config.json").index_rule is None


def test_without_index_topk_there_is_no_rule():
    facts = model_facts_from_config({**CONFIG, "index_topk": None}, "config.json")
    assert (facts.index_rule, facts.sparse_mla) == (None, False)


def test_overrides_decide_over_the_checkpoint():
    facts = model_facts_from_config(CONFIG, "config.json", {"index_topk_freq": 1, "num_hidden_layers": 40})
    assert facts.index_rule == IndexRule(freq=1, offset=3)
    assert facts.num_layers == 40


def test_the_language_model_of_a_nested_config_counts():
    facts = model_facts_from_config(
        {"architectures": ["X"], "num_hidden_layers": 9, "text_config": {"num_hidden_layers": 12, "model_type": "t"}},
        "config.json",
        {"text_config": {"vocab_size": 7}},
    )
    assert (facts.num_layers, facts.model_type, facts.vocab_size) == (12, "t", 7)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected 1 to 1000"),
        ({"num_hidden_layers": "78"}, "num_hidden_layers is '78', expected a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, expected a whole number"),
        ({"num_hidden_layers": 78.0}, "num_hidden_layers is 78.0, expected a whole number"),
        ({"index_topk_freq": 0}, "index_topk_freq is 0, but it must be at least 1"),
        ({"index_topk_freq": "4"}, "index_topk_freq is '4', expected a whole number"),
    ],
)
def test_a_value_that_decides_the_topology_is_not_guessed(keys: dict[str, Any], reason: str):
    with pytest.raises(DeployError) as caught:
        model_facts_from_config({**CONFIG, **keys}, "config.json")
    assert caught.value.what.startswith("config.json: ")
    assert reason in caught.value.what


@pytest.mark.parametrize("architectures", [[{}], [[]], [None], [7], {}, None, "GlmMoeDsaForCausalLM", []])
def test_an_architecture_that_is_no_name_is_no_crash(architectures: Any):
    assert model_facts_from_config({**CONFIG, "architectures": architectures}, "config.json").index_rule is None


def test_a_directory_without_config_says_nothing(tmp_path: Path):
    assert read_model_directory(tmp_path, "model") is None


def test_a_checkpoints_own_config_is_read(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    facts = read_model_directory(tmp_path, "model")
    assert facts is not None
    assert (facts.source, facts.num_layers) == ("model/config.json", 78)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"num_hidden_layers": 1e999}']
)
def test_a_damaged_config_is_one_clear_line(tmp_path: Path, content: bytes):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(DeployError, match=r"^model/?.* |^model/config\.json"):
        read_model_directory(tmp_path, "model")


@pytest.mark.parametrize("text", ["", "a: 1", "schema: shardwright/model-v1", "- a", "schema: x\nconfig: {}"])
def test_a_file_that_is_no_model_file_is_refused(tmp_path: Path, text: str):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(DeployError, match="not a model file"):
        read_model_file(tmp_path / "m.yaml", "m.yaml")
