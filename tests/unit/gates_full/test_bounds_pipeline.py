"""Borders of pipeline parallelism: models and switches that do not go with it."""

from __future__ import annotations

import pytest
from deployed import deployed, said

from shardwright.facts.facts import Facts
from shardwright.facts.shape import ModelShape
from shardwright.gates.pipeline import check_pipeline_support
from shardwright.gates.runner import check_model_runner


def shaped(architecture: str) -> Facts:
    return Facts(shape=ModelShape("c", architecture))


@pytest.mark.parametrize(
    "architecture", ["Zamba2ForCausalLM", "Glm5NextForCausalLM", "WhisperForConditionalGeneration"]
)
def test_a_model_without_the_interface_stays_whole(architecture: str) -> None:
    text = f"pipeline-parallel reject: {architecture} cannot be split into 2 stages in vLLM 0.30.0"
    assert said(check_pipeline_support, deployed(pipeline=2), shaped(architecture)) == [text]
    assert said(check_pipeline_support, deployed(), shaped(architecture)) == []
    assert said(check_pipeline_support, deployed(pipeline=2, engine={"command": ()}), shaped(architecture)) == []
    for version, read in (("0.27.9", False), ("0.28.0", True), ("0.33.9", True), ("0.34.0", False)):
        found = said(check_pipeline_support, deployed(pipeline=2, engine={"vllm": version}), shaped(architecture))
        assert bool(found) == read


def test_other_models_are_split() -> None:
    for facts in (Facts(), shaped(""), shaped("LlamaForCausalLM")):
        assert said(check_pipeline_support, deployed(pipeline=2), facts) == []


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--enable-elastic-ep",), "--enable-elastic-ep"),
        (("--enable-return-routed-experts",), "--enable-return-routed-experts"),
        (('--attention-config {"hisparse_config":{}}',), "--attention-config.hisparse_config"),
        (('--attention-config.hisparse_config {"x":1}',), "--attention-config.hisparse_config"),
        (("--no-enable-elastic-ep",), None),
        (('--attention-config {"hisparse_config":null}',), None),
        (('--attention-config {"backend":"FLASH_ATTN"}',), None),
    ],
)
def test_switches_that_the_engine_refuses_over_stages(flags: tuple[str, ...], named: str | None) -> None:
    text = f"pipeline-parallel reject: {named} does not go with PP=2"
    assert said(check_pipeline_support, deployed(*flags, pipeline=2)) == ([text] if named else [])
    assert said(check_pipeline_support, deployed(*flags)) == []


@pytest.mark.parametrize(
    ("version", "pinned", "stages", "flag", "refused"),
    [
        ("0.32.0", "0", 2, "--async-scheduling", True),
        ("0.33.0", "0", 4, "--async-scheduling", True),
        ("0.31.9", "0", 2, "--async-scheduling", False),
        ("0.32.0", "1", 2, "--async-scheduling", False),
        ("0.32.0", None, 2, "--async-scheduling", False),
        ("0.32.0", "0", 1, "--async-scheduling", False),
        ("0.32.0", "0", 2, "--no-async-scheduling", False),
        ("0.32.0", "0", 2, "--enforce-eager", False),
    ],
)
def test_the_old_runner_does_not_schedule_stages_ahead(
    version: str, pinned: str | None, stages: int, flag: str, refused: bool
) -> None:
    env = {} if pinned is None else {"VLLM_USE_V2_MODEL_RUNNER": pinned}
    asked = deployed(flag, pipeline=stages, env=env, engine={"vllm": version})
    text = f"model-runner reject: async scheduling over {stages} stages needs model runner V2, and "
    found = said(check_model_runner, asked)
    assert found == ([f"{text}VLLM_USE_V2_MODEL_RUNNER=0 forbids it"] if refused else [])
