"""Known death messages: every rule says yes to its own line and no to a healthy log."""

from __future__ import annotations

import re

import pytest
from runtime_samples import HEALTHY, recorded

from shardwright.runtime.doctor import Rule, diagnose, rules


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_each_rule_knows_its_message_and_no_other_cause_claims_it(rule: Rule) -> None:
    found = diagnose([rule.example])
    assert found[0].id == rule.id
    assert {diagnosis.kind for diagnosis in found[1:]} <= {"symptom"}
    assert not re.search(r"\{\w+\}", found[0].cause + found[0].fix + found[0].command)
    assert found[0].evidence_line


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_no_rule_fires_on_a_healthy_log(rule: Rule) -> None:
    assert rule.id not in [diagnosis.id for diagnosis in diagnose(recorded(HEALTHY))]


def test_rules_have_names_of_their_own() -> None:
    names = [rule.id for rule in rules()]
    assert len(set(names)) == len(names) >= 25


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("heads-not-divisible.log", "heads-not-divisible"),
        ("partition-sum.log", "partition-sum"),
        ("first-token-500.log", "pp-cpu-eager"),
        ("unknown-flag.log", "unknown-flag"),
        ("context-too-long.log", "context-too-long"),
        ("model-missing.log", "model-path-missing"),
        ("port-in-use.log", "port-in-use"),
    ],
)
def test_the_logs_of_engines_that_really_died_have_one_cause_each(log: str, cause: str) -> None:
    found = diagnose(recorded(log))
    assert [diagnosis.id for diagnosis in found if diagnosis.kind == "cause"] == [cause]


def test_the_numbers_of_a_small_kv_pool_are_carried_over() -> None:
    line = (
        "(EngineCore pid=7) ERROR 11-30 21:12:07 [core.py:1366] ValueError: To serve at least one request with the "
        "model's max seq len (524288), (26.66 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (15.56 GiB). Based on the available memory, the estimated maximum model length is 305984. Try "
    )
    (found,) = diagnose([line])
    for number in ("524288", "26.66", "15.56", "305984"):
        assert number in found.cause
    assert found.command == "deploy check --set serve.max_model_len=305984"
    assert found.evidence_line.startswith("(EngineCore pid=7) ValueError: To serve")


def test_causes_come_before_their_echoes_and_hints() -> None:
    found = diagnose(
        [
            "WARNING 11-30 21:10:32 [envs.py:2248] Unknown vLLM environment variable detected: VLLM_NO_SUCH",
            "ERROR 11-30 21:12:07 [core.py:1366] EngineCore failed to start.",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 350.00 MiB. GPU 0 has",
        ]
    )
    assert [diagnosis.id for diagnosis in found] == ["gpu-out-of-memory", "engine-core-died", "unknown-env"]


def test_what_an_engine_merely_mentions_is_no_cause() -> None:
    mention = "CUDA out of memory. Tried to allocate 1 GiB."
    assert diagnose([f"INFO 11-30 21:10:32 [x.py:1] {mention}", f"WARNING 11-30 21:10:32 [x.py:1] {mention}"]) == []


@pytest.mark.parametrize(("code", "cause"), [(137, "killed-by-oom-killer"), (132, "illegal-instruction")])
def test_an_exit_code_speaks_for_itself(code: int, cause: str) -> None:
    assert [diagnosis.id for diagnosis in diagnose([], code)] == [cause]
    assert diagnose([], 1) == []


def test_an_unknown_death_is_not_explained() -> None:
    assert diagnose(["RuntimeError: something that nobody has seen"]) == []
