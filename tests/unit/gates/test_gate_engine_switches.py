"""Switches of the engine that the launcher decides or that would end the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.campaign.request import Request
from tests.unit.helpers import BASE, GLM, argv, env, findings, request_for

OFF, ON = "--disable-custom-all-reduce", "--no-disable-custom-all-reduce"


def at_tp(root: Path, tensor: int, extra: str = "", platform: str = "cuda", **environ: str) -> Request:
    text = GLM + f"engine: {{platform: {platform}}}\nparallel: {{tensor: {tensor}}}\n{extra}"
    return request_for(root, text, environ)


def verdicts(request: Request, gate: str) -> list[str]:
    return [finding.verdict for finding in findings(request, gate)]


def test_custom_all_reduce_at_tp_2_is_switched_off_by_rule(tmp_path: Path):
    request = at_tp(tmp_path, 2)
    assert OFF in argv(request)
    (argument,) = [a for a in request.deployment.engine_args if a.tokens == (OFF,)]
    assert str(argument.origin) == "rule tp2-custom-all-reduce-off"
    assert verdicts(request, "custom-all-reduce") == []


def test_custom_all_reduce_asked_for_at_tp_2_is_refused(tmp_path: Path):
    request = at_tp(tmp_path, 2, DISABLE_CUSTOM_ALL_REDUCE="0")
    assert verdicts(request, "custom-all-reduce") == ["reject"]
    assert "custom_all_reduce.cuh:164" in findings(request, "custom-all-reduce")[0].why


@pytest.mark.parametrize("key", ["disable_custom_all_reduce: false", "no_disable_custom_all_reduce: true"])
def test_the_layout_cannot_ask_for_it_in_another_spelling(tmp_path: Path, key: str):
    assert verdicts(at_tp(tmp_path, 2, f"serve: {{{key}}}\n"), "custom-all-reduce") == ["reject"]


def test_switched_off_by_hand_at_tp_2_it_stands_once(tmp_path: Path):
    request = at_tp(tmp_path, 2, DISABLE_CUSTOM_ALL_REDUCE="1")
    assert argv(request).count(OFF) == 1
    assert verdicts(request, "custom-all-reduce") == []


def test_a_null_in_the_layout_does_not_switch_the_rule_off(tmp_path: Path):
    assert OFF in argv(at_tp(tmp_path, 2, "serve: {disable_custom_all_reduce: null}\n"))


@pytest.mark.parametrize(("tensor", "platform"), [(1, "cuda"), (4, "cuda"), (8, "cuda"), (2, "cpu")])
def test_the_rule_does_not_act_elsewhere(tmp_path: Path, tensor: int, platform: str):
    assert OFF not in argv(at_tp(tmp_path, tensor, platform=platform))


def test_asked_for_at_tp_4_it_is_passed_on(tmp_path: Path):
    request = at_tp(tmp_path, 4, DISABLE_CUSTOM_ALL_REDUCE="0")
    assert ON in argv(request)
    assert verdicts(request, "custom-all-reduce") == []


def test_the_engine_does_not_give_up_before_we_do(tmp_path: Path):
    request = request_for(tmp_path, BASE + "wait: {timeout_s: 900}\n")
    assert env(request)["VLLM_ENGINE_READY_TIMEOUT_S"] == "960"
    assert verdicts(request, "ready-timeout") == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("600", ["warn"]),
        ("1800", []),
        ("soon", ["reject"]),
        ("-1", ["reject"]),
        ("\u0663", ["reject"]),
        ("9" * 5000, ["reject"]),
    ],
)
def test_a_ready_timeout_by_hand_is_judged(tmp_path: Path, value: str, expected: list[str]):
    request = request_for(tmp_path, BASE + f'env: {{VLLM_ENGINE_READY_TIMEOUT_S: "{value}"}}\n')
    assert verdicts(request, "ready-timeout") == expected


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("tensor_parallel_size: 2", "parallel.tensor"),
        ("pipeline-parallel-size: 2", "parallel.pipeline"),
        ("speculative_config: {method: mtp}", "speculative"),
        ("speculative_config.method: mtp", "speculative"),
        ("host: 0.0.0.0", "container.publish"),
        ("port: 1", "container.publish"),
        ("port: -1", "container.publish"),
        ("model: x", "model.path"),
        ("revision: x", "model.revision"),
        ("tp: 2", "parallel.tensor"),
    ],
)
def test_a_flag_that_the_launcher_derives_is_refused_in_serve(tmp_path: Path, key: str, owner: str):
    (finding,) = findings(request_for(tmp_path, BASE + f"serve: {{{key}}}\n"), "owned-flags")
    assert finding.verdict == "reject"
    assert f"but {owner} decides it" in finding.message
    assert "demo.yaml:5" in finding.message


@pytest.mark.parametrize(
    "parallel", ["", "parallel: {pipeline: 2}\n", "parallel: {pipeline: 2, layer_partition: [2, 1]}\n"]
)
def test_a_partition_smuggled_in_through_env_is_refused(tmp_path: Path, parallel: str):
    request = request_for(tmp_path, BASE + parallel + "env: {VLLM_PP_LAYER_PARTITION: '3,1'}\n")
    assert verdicts(request, "owned-flags") == ["reject"]


def test_flags_and_variables_that_nobody_derives_are_accepted(tmp_path: Path):
    text = BASE + "serve: {max_model_len: 1000, hf_overrides: {a: 1}}\nenv: {NCCL_DEBUG: WARN}\n"
    assert verdicts(request_for(tmp_path, text), "owned-flags") == []


@pytest.mark.parametrize(
    ("pipeline", "platform", "expected"), [(2, "cuda", "1"), (1, "cuda", None), (2, "cpu", None), (2, "rocm", None)]
)
def test_runner_v2_is_pinned_only_where_it_exists_and_is_needed(
    tmp_path: Path, pipeline: int, platform: str, expected: str | None
):
    text = GLM + f"engine: {{platform: {platform}}}\nparallel: {{pipeline: {pipeline}}}\n"
    assert env(request_for(tmp_path, text)).get("VLLM_USE_V2_MODEL_RUNNER") == expected


@pytest.mark.parametrize(("value", "expected"), [("", "1"), ("0", "0"), ("1", "1")])
def test_forced_runner_decides_over_the_rule_and_empty_means_the_rule(tmp_path: Path, value: str, expected: str):
    request = request_for(tmp_path, GLM + "parallel: {pipeline: 2}\n", {"FORCE_V2_RUNNER": value})
    assert env(request)["VLLM_USE_V2_MODEL_RUNNER"] == expected


def test_null_leaves_the_runner_variable_unset_on_purpose(tmp_path: Path):
    request = request_for(tmp_path, GLM + "parallel: {pipeline: 2}\nenv: {VLLM_USE_V2_MODEL_RUNNER: null}\n")
    assert "VLLM_USE_V2_MODEL_RUNNER" not in env(request)
