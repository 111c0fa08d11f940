"""Borders of what the environment says: near names, slow settings, interfaces and devices."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import GIVEN, LAYOUT, RULE, deployed, fixes, said
from msgspec.structs import replace

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable, Retired
from shardwright.facts.facts import Facts
from shardwright.facts.host import Host
from shardwright.gates.engine import (
    OWNED_FLAGS,
    check_custom_all_reduce,
    check_owned_flags,
    check_ready_timeout,
)
from shardwright.gates.environment import check_device_selection, check_engine_variables, check_nccl
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
    assert said(check_engine_variables, asked, gone)[0].startswith("engine-env reject: ")


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
    ("name", "value", "slow"),
    [
        ("NCCL_ALGO", "allreduce:tree", True),
        ("NCCL_ALGO", " AllReduce:Tree ", True),
        ("NCCL_ALGO", "ring", False),
        ("NCCL_PROTO", "LL128", True),
        ("NCCL_PROTO", "LL", False),
        ("NCCL_MIN_NCHANNELS", "1", True),
        ("NCCL_MIN_NCHANNELS", "2", False),
        ("NCCL_MAX_NCHANNELS", "1", True),
        ("NCCL_MAX_NCHANNELS", "0", False),
    ],
)
def test_settings_that_were_measured_slower_are_named(name: str, value: str, slow: bool) -> None:
    found = said(check_nccl, deployed(env={name: value}))
    plain = value.strip().replace("AllReduce:Tree", "allreduce:tree")
    assert found == ([f"nccl info: {name}={plain} was measured slower than the default"] if slow else [])


@pytest.mark.parametrize(
    ("tensor", "p2p", "shm", "speaks"),
    [
        (2, "1", "1", True),
        (2, " 1 ", "1", True),
        (2, "0", "1", False),
        (2, "1", "0", False),
        (1, "1", "1", False),
        (2, "1", "", False),
    ],
)
def test_ranks_of_one_host_keep_a_way_to_talk(tensor: int, p2p: str, shm: str, speaks: bool) -> None:
    found = said(check_nccl, deployed(tensor=tensor, env={"NCCL_P2P_DISABLE": p2p, "NCCL_SHM_DISABLE": shm}))
    assert len(found) == speaks and all(text.startswith("nccl warn: NCCL_P2P_DISABLE=1 and") for text in found)
    assert said(check_nccl, deployed(tensor=tensor, env={"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"})) == []


BOTH = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("value", "nodes", "interfaces", "found"),
    [
        ("lo", 2, ("lo", "eth0"), "reject: {}=lo cannot reach the other nodes"),
        ("lo,lo", 2, ("lo", "eth0"), "reject: {}=lo,lo cannot reach the other nodes"),
        ("lo", 1, ("lo", "eth0"), None),
        ("lo,eth0", 2, ("lo", "eth0"), None),
        ("eth0", 2, ("lo", "eth0"), None),
        ("eth", 2, ("lo", "eth0"), None),
        ("=eth0", 2, ("lo", "eth0"), None),
        ("=eth", 2, ("lo", "eth0"), "reject: {}==eth: this host has no such interface"),
        ("ib0", 2, ("lo", "eth0"), "reject: {}=ib0: this host has no such interface"),
        ("ib0", 2, (), None),
        ("^docker", 2, ("lo", "eth0"), None),
        ("", 2, ("lo", "eth0"), "reject: {}=: this host has no such interface"),
        ("", 2, (), None),
    ],
)
def test_an_interface_is_there_and_leads_to_the_other_nodes(
    name: str, value: str, nodes: int, interfaces: tuple[str, ...], found: str | None
) -> None:
    other = BOTH[1 - BOTH.index(name)]
    asked = deployed(f"--nnodes {nodes}", env={name: value, other: "eth0"})
    texts = said(check_nccl, asked, Facts(host=Host(interfaces=interfaces)))
    assert len(texts) == (found is not None)
    for text in texts:
        assert text.startswith("nccl " + (found or "").format(name)) and text.endswith("(case.yaml:1)")


def test_the_interfaces_that_can_be_named_are_named_without_the_loopback() -> None:
    asked = deployed("--nnodes 2", env=dict.fromkeys(BOTH, "lo"))
    assert (
        fixes(check_nccl, asked, Facts(host=Host(interfaces=("lo", "eth0", "ib0"))))
        == ["name the interface between the hosts (have eth0, ib0)"] * 2
    )
    assert (
        fixes(check_nccl, asked, Facts(host=Host(interfaces=("lo",)))) == ["name the interface between the hosts"] * 2
    )


@pytest.mark.parametrize(
    ("nodes", "names", "speaks"), [(2, BOTH, False), (2, BOTH[:1], True), (2, BOTH[1:], False), (1, BOTH[:1], False)]
)
def test_both_interfaces_are_chosen_or_none(nodes: int, names: tuple[str, ...], speaks: bool) -> None:
    found = said(check_nccl, deployed(f"--nnodes {nodes}", env=dict.fromkeys(names, "eth0")))
    assert found == (["nccl warn: NCCL_SOCKET_IFNAME is set without GLOO_SOCKET_IFNAME"] if speaks else [])


@pytest.mark.parametrize(
    ("tensor", "env", "found"),
    [
        (2, {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        (2, {"CUDA_VISIBLE_DEVICES": "0, 1,"}, None),
        (2, {"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES gives 1 devices, but 2 ranks run on this host"),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES gives 0 devices, but 2 ranks run on this host"),
        (2, {"HIP_VISIBLE_DEVICES": "0"}, "HIP_VISIBLE_DEVICES gives 1 devices, but 2 ranks run on this host"),
        (2, {"NVIDIA_VISIBLE_DEVICES": "0"}, "NVIDIA_VISIBLE_DEVICES gives 1 devices, but 2 ranks run on this host"),
        (2, {"CUDA_VISIBLE_DEVICES": "0,1,1"}, "CUDA_VISIBLE_DEVICES names a device twice: 0,1,1"),
        (2, {"NVIDIA_VISIBLE_DEVICES": "all"}, None),
        (2, {"NVIDIA_VISIBLE_DEVICES": "void"}, None),
        (2, {"NVIDIA_VISIBLE_DEVICES": "none"}, None),
        (2, {"CUDA_VISIBLE_DEVICES": "all"}, "CUDA_VISIBLE_DEVICES gives 1 devices, but 2 ranks run on this host"),
        (
            1,
            {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"},
            "devices are chosen twice: CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES",
        ),
        (1, {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "3"}, None),
    ],
)
def test_devices_are_enough_distinct_and_chosen_once(tensor: int, env: dict[str, str], found: str | None) -> None:
    texts = said(check_device_selection, deployed(tensor=tensor, env=env))
    assert texts == ([f"device-selection reject: {found}"] if found else [])


def test_devices_by_flag_count_like_those_by_variable() -> None:
    assert said(check_device_selection, deployed("--device-ids 0,1", tensor=2)) == []
    assert said(check_device_selection, deployed("--device-ids 0,", tensor=2)) == [
        "device-selection reject: --device-ids gives 1 devices, but 2 ranks run on this host"
    ]
    both = deployed("--device-ids 0", env={"CUDA_VISIBLE_DEVICES": "0"})
    assert fixes(check_device_selection, both) == ["keep CUDA_VISIBLE_DEVICES only"]


def test_the_ranks_of_this_host_alone_need_devices() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert said(check_device_selection, deployed("--nnodes 2", tensor=4, env=env)) == []
    assert len(said(check_device_selection, deployed("--nnodes 2", tensor=8, env=env))) == 1
    assert (
        said(check_device_selection, deployed(tensor=4, env=env, engine={"platform": "cpu"}, container={"gpus": None}))
        == []
    )


@pytest.mark.parametrize(
    ("gpus", "tensor", "visible", "found"),
    [
        ("2", 2, None, None),
        ("2", 3, None, "container.gpus passes 2 cards, but 3 ranks run on this host"),
        ("device=4,5", 2, None, None),
        ("device=4,5", 3, None, "container.gpus passes 2 cards, but 3 ranks run on this host"),
        ('"device=4,5"', 3, None, "container.gpus passes 2 cards, but 3 ranks run on this host"),
        ("'device=4'", 2, None, "container.gpus passes 1 cards, but 2 ranks run on this host"),
        ("all", 9, None, None),
        (None, 9, None, None),
        ("2", 1, "1", None),
        ("2", 1, "2", "CUDA_VISIBLE_DEVICES names device 2, but container.gpus passes 2, numbered from 0"),
        ("device=4,5", 1, "4", "CUDA_VISIBLE_DEVICES names device 4, but container.gpus passes 2, numbered from 0"),
        ("device=4", 1, "0", None),
        ("2", 1, "GPU-abc", None),
    ],
)
def test_a_container_numbers_its_cards_from_0(
    gpus: str | None, tensor: int, visible: str | None, found: str | None
) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    asked = deployed(tensor=tensor, env=env, container={"gpus": gpus})
    assert said(check_device_selection, asked) == ([f"device-selection reject: {found}"] if found else [])
    assert (
        said(check_device_selection, deployed(tensor=tensor, env=env, container={"gpus": gpus}, runtime="local")) == []
    )
    if visible is not None:
        by_flag = deployed(f"--device-ids {visible}", tensor=tensor, container={"gpus": gpus})
        expected = found and found.replace("CUDA_VISIBLE_DEVICES", "--device-ids")
        assert said(check_device_selection, by_flag) == ([f"device-selection reject: {expected}"] if found else [])


def test_a_container_of_two_hosts_passes_the_cards_of_one() -> None:
    assert said(check_device_selection, deployed("--nnodes 2", tensor=4, container={"gpus": "2"})) == []
    assert len(said(check_device_selection, deployed("--nnodes 2", tensor=6, container={"gpus": "2"}))) == 1


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
