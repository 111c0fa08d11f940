"""Borders of what the environment says: near names, and switches that the launcher decides."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import GIVEN, LAYOUT, RULE, deployed, fixes, said
from msgspec.structs import replace

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable, Retired
from shardwright.facts.facts import Facts
from shardwright.gates.engine import (
    OWNED_FLAGS,
    check_custom_all_reduce,
    check_owned_flags,
    check_ready_timeout,
)
from shardwright.gates.environment import check_engine_variables
from shardwright.resolve.deployment import EnvPair

KNOWN = ("VLLM_ABCDEFGHIJKLMNOP", "VLLM_ABCDEFGHIJKL1234", "VLLM_QRSTUVWXYZABCDE", "VLLM_USE_ONE")


def engine(*others: tuple[str, tuple[str, ...]], retired: dict[str, str] | None = None) -> Facts:
    tables = tuple(EngineTable(version, "test", (), names, ()) for version, names in others)
    return Facts(engine=EngineFacts(EngineTable("0.30.0", "test", (), KNOWN, ()), tables, Retired({}, retired or {})))


@pytest.mark.parametrize(
    ("name", "verdict", "fix"),
    [
        ("VLLM_USE_ONE", None, ""),
        ("OTHER_NAME", None, ""),
        ("vllm_use_one", "reject", "did you mean VLLM_USE_ONE?"),
        ("vllm_qrstuvwxyzabc__", "reject", "did you mean VLLM_QRSTUVWXYZABCDE?"),
        # Two letters of 20: 0.9, just enough.
        ("VLLM_QRSTUVWXYZABC__", "reject", "did you mean VLLM_QRSTUVWXYZABCDE?"),
        # One letter of 21 is another: a ratio of 0.952. Two: 0.905. Three: 0.857.
        ("VLLM_ABCDEFGHIJKLMNO_", "reject", "did you mean VLLM_ABCDEFGHIJKLMNOP?"),
        ("VLLM_ABCDEFGHIJKLMN__", "reject", "did you mean VLLM_ABCDEFGHIJKLMNOP?"),
        ("VLLM_ABCDEFGHIJKLM___", "warn", "did you mean VLLM_ABCDEFGHIJKLMNOP? Where"),
        # Five and six letters of 20: 0.762 is near, 0.732 is not.
        ("VLLM_ABCDEFGHIJK_____", "warn", "did you mean VLLM_ABCDEFGHIJKLMNOP? Where"),
        ("VLLM_ABCDEFGHIJ_____", "warn", "remove VLLM_ABCDEFGHIJ_____ from env: Where"),
        ("VLLM_SOMETHING_ELSE_QUITE", "warn", "remove VLLM_SOMETHING_ELSE_QUITE from env: Where"),
    ],
)
def test_a_slip_of_the_pen_is_refused_and_a_name_of_somebody_elses_is_not(
    name: str, verdict: str | None, fix: str
) -> None:
    asked = deployed(env={name: "1"})
    found = said(check_engine_variables, asked, engine())
    assert len(found) == len(fixes(check_engine_variables, asked, engine())) == (verdict is not None)
    if verdict is not None:
        assert found[0].startswith(f"engine-env {verdict}: {name} is not read by vLLM 0.30.0 (case.yaml:1)")
        assert fixes(check_engine_variables, asked, engine())[0].startswith(fix)


def test_a_variable_of_another_version_names_that_version_and_a_retired_one_its_successor() -> None:
    name = "VLLM_SOMETHING_ELSE_QUITE"
    asked = deployed(env={name: "1"})
    facts = engine(("0.28.0", (name,)), ("0.32.0", KNOWN), ("0.33.0", (name,)))
    (found,) = said(check_engine_variables, asked, facts)
    assert found == f"engine-env reject: {name} is not read by vLLM 0.30.0 (case.yaml:1); 0.28.0 and 0.33.0 did"
    gone = engine(("0.28.0", (name,)), retired={name: "write the other"})
    assert fixes(check_engine_variables, asked, gone) == ["write the other"]
    assert said(check_engine_variables, asked, gone)[0].endswith("; 0.28.0 did")
    small = deployed(env={name.lower(): "1"})
    assert fixes(check_engine_variables, small, gone) == ["write the other"]
    never = engine(retired={name: "write the other"})
    assert said(check_engine_variables, asked, never) == [
        f"engine-env reject: {name} is not read by vLLM 0.30.0 (case.yaml:1)"
    ]


def test_what_a_rule_set_or_the_image_declares_is_not_judged() -> None:
    by_rule = replace(deployed(), env=(EnvPair("VLLM_X", "1", RULE),))
    assert said(check_engine_variables, by_rule, engine()) == []
    by_hand = replace(by_rule, env=(EnvPair("VLLM_X", "1", LAYOUT),))
    assert len(said(check_engine_variables, by_hand, engine())) == 1
    declared = replace(by_hand, engine=replace(by_hand.engine, provides=replace(GIVEN, envs=("VLLM_X",))))
    assert said(check_engine_variables, declared, engine()) == []
    for facts in (None, Facts(engine=EngineFacts(None))):
        (found,) = said(check_engine_variables, by_hand, facts)
        assert found == "engine-env unknown: the variables of vLLM 0.30.0 are not known here, so unchecked: VLLM_X"
        assert said(check_engine_variables, by_rule, facts) == []


@pytest.mark.parametrize(
    ("tensor", "platform", "speaks"), [(2, "cuda", True), (1, "cuda", False), (3, "cuda", False), (2, "cpu", False)]
)
def test_custom_all_reduce_is_not_asked_for_at_tp_2(tensor: int, platform: str, speaks: bool) -> None:
    asked = deployed("--seed 1", "--no-disable-custom-all-reduce x", tensor=tensor, engine={"platform": platform})
    found = said(check_custom_all_reduce, asked)
    assert found == (
        ["custom-all-reduce reject: custom all-reduce is asked for at TP=2 (case.yaml:1)"] if speaks else []
    )
    assert said(check_custom_all_reduce, deployed("--disable-custom-all-reduce", tensor=2)) == []


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("1800", None),
        ("1801", None),
        ("1799", "warn: VLLM_ENGINE_READY_TIMEOUT_S=1799 is below the wait timeout of 1800 s"),
        ("999999999", None),
        ("9999999999", "reject: VLLM_ENGINE_READY_TIMEOUT_S='9999999999' is not a whole number of seconds"),
        ("٣٠٠٠", "reject: VLLM_ENGINE_READY_TIMEOUT_S='٣٠٠٠' is not a whole number of seconds"),
        ("1e4", "reject: VLLM_ENGINE_READY_TIMEOUT_S='1e4' is not a whole number of seconds"),
        ("", "reject: VLLM_ENGINE_READY_TIMEOUT_S='' is not a whole number of seconds"),
    ],
)
def test_the_engine_waits_at_least_as_long_as_we_do(value: str, found: str | None) -> None:
    asked = deployed(env={"OTHER": "x", "VLLM_ENGINE_READY_TIMEOUT_S": value})
    assert said(check_ready_timeout, asked) == ([f"ready-timeout {found}"] if found else [])


def test_every_owned_flag_is_refused_with_the_key_that_decides_it() -> None:
    for flag, key in {
        "--model": "model.path",
        "--revision": "model.revision",
        "--host": "container.publish",
        "--port": "container.publish",
        "--tensor-parallel-size": "parallel.tensor",
        "--tp": "parallel.tensor",
        "--pipeline-parallel-size": "parallel.pipeline",
        "--pp": "parallel.pipeline",
        "--speculative-config": "speculative",
        "--spec-method": "speculative.method",
        "--spec-model": "speculative.model",
        "--spec-tokens": "speculative.num_speculative_tokens",
    }.items():
        assert flag in OWNED_FLAGS
        for given in (f"{flag} 1", f"{flag}=1", f"{flag}.entry 1"):
            assert fixes(check_owned_flags, deployed("--seed 1", given)) == [f"remove it and set {key}"]
    derived = deployed("--port 8000")
    derived = replace(derived, engine_args=tuple(replace(item, passthrough=False) for item in derived.engine_args))
    assert said(check_owned_flags, derived) == []


@pytest.mark.parametrize(
    ("values", "partition", "count"),
    [(["41,37"], "41,37", 0), (["41,37"], None, 1), (["41,37", "40,38"], "41,37", 1), ([], None, 0)],
)
def test_a_partition_by_variable_is_refused_once(values: list[str], partition: Any, count: int) -> None:
    pairs = tuple(EnvPair("VLLM_PP_LAYER_PARTITION", value, LAYOUT) for value in values)
    asked = replace(deployed(env={"OTHER": "1"}), partition=partition)
    found = said(check_owned_flags, replace(asked, env=(*asked.env, *pairs)))
    assert len(found) == count
    for text in found:
        assert text.endswith("but parallel.layer_partition decides it")
        assert text.startswith("owned-flags reject: VLLM_PP_LAYER_PARTITION is given by hand (case.yaml:1), but")


def test_an_override_of_ours_among_the_engines_variables_acts_nowhere() -> None:
    env = {"PP_LAYER_PARTITION": "41,37", "MAX_TOKENS": "5"}
    wrong = deployed(env=env)
    (found,) = said(check_engine_variables, wrong, engine())
    assert found == f"engine-env warn: PP_LAYER_PARTITION in env: reaches the engine, which does not read it ({LAYOUT})"
    assert fixes(check_engine_variables, wrong, engine())[0].startswith("write parallel.layer_partition: 41,37; or")
    for own in ({"command": ("run.sh",)}, {"entrypoint": ("run.sh",)}):
        assert said(check_engine_variables, deployed(env=env, engine=own), engine()) == []
    provides = replace(deployed().engine.provides, envs=("PP_LAYER_PARTITION",))
    assert said(check_engine_variables, deployed(env=env, engine={"provides": provides}), engine()) == []
