"""`pp-dsa`: each remedy opens it, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.gates.finding import Finding
from tests.unit.helpers import GLM, findings, request_for

CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 64,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
}


def pp_dsa(root: Path, split: str, extra: str = "", **environ: str) -> list[Finding]:
    stages = split.count(",") + 1
    text = GLM + f"parallel: {{tensor: 2, pipeline: {stages}, layer_partition: [{split}]}}\n{extra}"
    return findings(request_for(root, text, environ), "pp-dsa")


def verdicts(found: list[Finding]) -> list[str]:
    return [finding.verdict for finding in found]


def model_at(folder: Path, *indexers: int) -> str:
    """The `model:` line of a checkpoint that has indexer weights for these layers."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = [f"model.layers.{layer}.self_attn.indexer.wk.weight" for layer in indexers]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "a")}))
    return f"model: {{path: {folder}}}\n"


@pytest.mark.parametrize(
    ("split", "named", "aligned"),
    [
        (
            "39,39",
            "3 orphan layers with the split 39,39: stage 1 starts on layer 39 and reads unwritten rows in 39,40,41",
            "38,40",
        ),
        ("41,37", "1 orphan layer with the split 41,37: stage 1 starts on layer 41", "42,36"),
        ("45,33", "1 orphan layer with the split 45,33", "46,32"),
    ],
)
def test_orphans_without_a_patch_are_refused_with_the_nearest_aligned_split(
    tmp_path: Path, split: str, named: str, aligned: str
):
    (finding,) = pp_dsa(tmp_path, split)
    assert finding.verdict == "reject"
    assert named in finding.message
    assert f"PP_LAYER_PARTITION={aligned};" in finding.fix
    assert "patches: [pp-index-transport]" in finding.fix
    assert "use PP=1" in finding.fix
    assert "21 of 100" in finding.why


@pytest.mark.parametrize("split", ["42,36", "38,40", "2,76"])
def test_an_aligned_split_needs_no_patch(tmp_path: Path, split: str):
    assert pp_dsa(tmp_path, split) == []


def test_the_engines_own_split_is_judged_too(tmp_path: Path):
    request = request_for(tmp_path, GLM + "parallel: {tensor: 4, pipeline: 2}\n")
    assert verdicts(findings(request, "pp-dsa")) == ["reject"]


def test_orphans_are_accepted_with_a_patch_that_remedies_them(tmp_path: Path):
    assert pp_dsa(tmp_path, "39,39", "patches: [pp-index-transport]\n") == []


def test_a_patch_that_remedies_something_else_does_not_count(tmp_path: Path):
    assert verdicts(pp_dsa(tmp_path, "39,39", "patches: [pp-cpu-eager]\n")) == ["reject"]


def test_the_sharing_switched_off_leaves_no_orphans(tmp_path: Path):
    assert pp_dsa(tmp_path, "39,39", HF_OVERRIDES='{"index_topk_freq": 1}') == []


def test_a_model_that_shares_no_indices_is_left_alone(tmp_path: Path):
    text = GLM + "model: {facts: deepseek-v4-flash}\nparallel: {pipeline: 3}\n"
    assert findings(request_for(tmp_path, text), "pp-dsa") == []


def test_a_model_that_nobody_knows_is_unknown_and_not_accepted(tmp_path: Path):
    text = GLM + "model: {facts: null}\nparallel: {pipeline: 2}\n"
    (finding,) = findings(request_for(tmp_path, text), "pp-dsa")
    assert (finding.verdict, "model.facts" in finding.fix) == ("unknown", True)


def test_more_than_two_stages_are_refused_even_without_orphans_and_that_is_said(tmp_path: Path):
    (finding,) = pp_dsa(tmp_path, "18,20,20,20")
    assert finding.verdict == "reject"
    assert "the split 18,20,20,20 has no orphan layers" in finding.message
    assert "PP=2 on an aligned split" in finding.fix


def test_three_even_stages_are_not_taken_for_verified(tmp_path: Path):
    found = pp_dsa(tmp_path, "26,26,26")
    assert verdicts(found) == ["reject", "reject"]
    assert any("52,53" in finding.message for finding in found)


@pytest.mark.parametrize("way", [{"extra": "allow: [unverified-pp]\n"}, {"ALLOW_UNVERIFIED_PP": "1"}])
def test_a_waiver_warns_and_asks_for_the_degeneration_probe(tmp_path: Path, way: dict[str, str]):
    found = pp_dsa(tmp_path, "18,20,20,20", **way)
    assert verdicts(found) == ["warn"]
    assert "deploy degen" in found[0].fix


def test_a_waiver_turns_no_bad_sum_into_a_warning(tmp_path: Path):
    text = GLM + "parallel: {pipeline: 4, layer_partition: [20, 20, 20, 20]}\nallow: [unverified-pp]\n"
    request = request_for(tmp_path, text)
    assert verdicts(findings(request, "pp-layer-partition")) == ["reject"]
    assert request.assessment.refused


RECOMPUTE = "patches: [pp-index-recompute]\n"


def test_recompute_without_a_checkpoint_at_hand_is_unknown(tmp_path: Path):
    (finding,) = pp_dsa(tmp_path, "39,39", RECOMPUTE)
    assert finding.verdict == "unknown"
    assert "39,40,41" in finding.message


def test_recompute_without_indexer_weights_is_refused_with_the_layers(tmp_path: Path):
    extra = RECOMPUTE + model_at(tmp_path / "weights", 38, 39, 42)
    (finding,) = pp_dsa(tmp_path, "39,39", extra)
    assert finding.verdict == "reject"
    assert "layers 40,41" in finding.message
    assert "uninitialised memory" in finding.why


def test_recompute_with_indexer_weights_only_warns_that_it_is_not_pp_1(tmp_path: Path):
    extra = RECOMPUTE + model_at(tmp_path / "weights", 38, 39, 40, 41, 42)
    (finding,) = pp_dsa(tmp_path, "39,39", extra)
    assert finding.verdict == "warn"
    assert "do not equal PP=1" in finding.message


def test_recompute_by_its_old_name_is_the_same_patch(tmp_path: Path):
    assert verdicts(pp_dsa(tmp_path, "39,39", "patches: [pp_index_share_fix]\n")) == ["unknown"]


def test_recompute_on_an_aligned_split_has_nothing_to_say(tmp_path: Path):
    assert pp_dsa(tmp_path, "42,36", RECOMPUTE) == []


def test_a_remedy_for_another_architecture_does_not_cover_this_one(tmp_path: Path):
    text = GLM + "patches: [pp-index-transport]\nparallel: {tensor: 4, pipeline: 2, layer_partition: [39, 39]}\n"
    assert findings(request_for(tmp_path, text), "pp-dsa") == []
    other = text + "serve: {hf_overrides: {architectures: [HYV4ForCausalLM]}}\n"
    (finding,) = findings(request_for(tmp_path, other), "pp-dsa")
    # HY-V4 computes layers 0, 1, 5, 9 and so on, whatever the other model's keys say.
    assert finding.verdict == "reject" and "layer 39 and reads unwritten rows in 39,40" in finding.message
