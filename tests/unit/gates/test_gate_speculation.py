"""`pp-mtp`, `pp-ngram` and the rule that decides `auto`."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.campaign.request import Request
from tests.unit.helpers import GLM, argv, findings, request_for


def at(root: Path, version: str = "0.30.0", pipeline: int = 2, extra: str = "", **environ: str) -> Request:
    text = GLM + f'engine: {{vllm: "{version}"}}\nparallel: {{pipeline: {pipeline}, layer_partition: null}}\n{extra}'
    return request_for(root, text, environ)


def verdict(request: Request, gate: str) -> list[str]:
    return [finding.verdict for finding in findings(request, gate)]


def test_auto_is_mtp_where_it_works(tmp_path: Path):
    request = at(tmp_path)
    assert '{"method":"mtp","num_speculative_tokens":3}' in argv(request)
    assert verdict(request, "pp-mtp") == []


@pytest.mark.parametrize("version", ["0.28.0", "0.29.0", "0.40.0"])
def test_auto_degrades_to_none_where_mtp_is_refused_or_unknown(tmp_path: Path, version: str):
    request = at(tmp_path, version)
    assert request.deployment.speculation.method == "none"
    assert "--speculative-config" not in argv(request)
    assert verdict(request, "pp-mtp") == []
    (note,) = [note for note in request.deployment.notes if note.rule == "spec-method-auto"]
    assert (note.warn, "speculation off: mtp with PP=2" in note.message) == (True, True)


def test_auto_at_pp_1_stays_mtp_on_an_old_engine(tmp_path: Path):
    assert at(tmp_path, "0.28.0", pipeline=1).deployment.speculation.method == "mtp"


def test_auto_on_a_model_without_mtp_layers_is_none(tmp_path: Path):
    request = at(tmp_path, HF_OVERRIDES='{"num_nextn_predict_layers": 0}')
    assert request.deployment.speculation.method == "none"


def test_auto_on_an_unknown_model_is_none_and_says_so(tmp_path: Path):
    request = at(tmp_path, extra="model: {facts: null}\n")
    assert request.deployment.speculation.method == "none"
    assert "the model's config is not known here" in request.deployment.notes[0].message


def test_mtp_asked_for_by_name_is_refused_and_not_dropped(tmp_path: Path):
    request = at(tmp_path, "0.28.0", SPEC_METHOD="mtp")
    assert verdict(request, "pp-mtp") == ["reject"]
    assert "it needs vLLM >= 0.30" in findings(request, "pp-mtp")[0].why
    assert "SPEC_METHOD=none" in findings(request, "pp-mtp")[0].fix


def test_mtp_asked_for_by_name_is_accepted_where_it_works(tmp_path: Path):
    assert verdict(at(tmp_path, SPEC_METHOD="mtp"), "pp-mtp") == []


def test_mtp_on_the_forced_v1_runner_is_refused(tmp_path: Path):
    request = at(tmp_path, SPEC_METHOD="mtp", FORCE_V2_RUNNER="0")
    assert verdict(request, "pp-mtp") == ["reject"]
    assert "FORCE_V2_RUNNER=0" in findings(request, "pp-mtp")[0].fix


def test_auto_on_the_forced_v1_runner_is_none(tmp_path: Path):
    assert at(tmp_path, FORCE_V2_RUNNER="0").deployment.speculation.method == "none"


def test_v1_by_the_layouts_own_variable_counts_too(tmp_path: Path):
    request = at(tmp_path, extra="env: {VLLM_USE_V2_MODEL_RUNNER: '0'}\n", SPEC_METHOD="mtp")
    assert verdict(request, "pp-mtp") == ["reject"]


@pytest.mark.parametrize(
    ("version", "expected"), [("0.28.0", "reject"), ("0.30.0", "reject"), ("0.32.0", "warn"), ("0.34.0", "unknown")]
)
def test_ngram_is_judged_by_the_engines_version(tmp_path: Path, version: str, expected: str):
    request = at(tmp_path, version, SPEC_METHOD="ngram")
    assert verdict(request, "pp-ngram") == [expected]
    assert verdict(request, "pp-mtp") == []


def test_unverified_speculation_asks_for_the_degeneration_probe(tmp_path: Path):
    (finding,) = findings(at(tmp_path, "0.32.0", SPEC_METHOD="ngram"), "pp-ngram")
    assert "deploy degen" in finding.fix


def test_ngram_at_pp_1_is_not_this_gates_business(tmp_path: Path):
    assert verdict(at(tmp_path, pipeline=1, SPEC_METHOD="ngram"), "pp-ngram") == []


def test_an_unknown_method_is_unknown_and_the_known_ones_are_listed(tmp_path: Path):
    (finding,) = findings(at(tmp_path, SPEC_METHOD="mtq"), "pp-mtp")
    assert finding.verdict == "unknown"
    assert "'mtq' is not a known method" in finding.message
    assert "eagle3" in finding.fix


def test_a_head_that_reads_hidden_states_is_refused_by_name_on_this_model(tmp_path: Path):
    (finding,) = findings(at(tmp_path, SPEC_METHOD="eagle3"), "pp-mtp")
    assert (finding.verdict, "eagle3" in finding.why, "<method>" in finding.why) == ("reject", True, False)
