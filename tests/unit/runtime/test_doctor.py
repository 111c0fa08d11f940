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


VANISHED_CORE = (
    "(APIServer pid=7) Traceback (most recent call last):",
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
)


def test_a_core_that_ended_without_a_word_was_killed_or_crashed() -> None:
    found = diagnose(["(EngineCore pid=8) INFO 11-30 21:10:32 [x.py:1] Loading weights", *VANISHED_CORE])
    assert [diagnosis.id for diagnosis in found] == ["core-vanished", "engine-core-died"]


@pytest.mark.parametrize(
    "said",
    [
        "(EngineCore pid=8) ERROR 11-30 21:10:32 [core.py:1366] ValueError: something that no rule knows",
        "(EngineCore pid=8) Traceback (most recent call last):",
        "(Worker_TP1 pid=9) ERROR 11-30 21:10:32 [x.py:1] something that no rule knows",
    ],
)
def test_a_core_that_said_why_did_not_vanish(said: str) -> None:
    assert [diagnosis.id for diagnosis in diagnose([said, *VANISHED_CORE])] == ["engine-core-died"]


def test_a_worker_killed_with_its_exit_code_has_one_cause() -> None:
    died = "(EngineCore pid=8) ERROR 11-30 21:10:32 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: {})"
    for code, cause in ((-9, "killed-by-oom-killer"), (-11, "segmentation-fault"), (None, "worker-vanished")):
        assert [diagnosis.id for diagnosis in diagnose([died.format(code)])] == [cause, "engine-core-died"]


@pytest.mark.parametrize(("code", "cause"), [(137, "killed-by-oom-killer"), (132, "illegal-instruction")])
def test_an_exit_code_speaks_for_itself(code: int, cause: str) -> None:
    assert [diagnosis.id for diagnosis in diagnose([], code)] == [cause]
    assert diagnose([], 1) == []


def test_an_unknown_death_is_not_explained() -> None:
    assert diagnose(["RuntimeError: something that nobody has seen"]) == []
