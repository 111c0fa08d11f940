"""Borders of what chooses the cards: the container, the variables, the flag, and how many cards there are."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said

from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu, Host
from shardwright.gates.cards import check_free_memory, check_uneven_cards
from shardwright.gates.devices import CardRequest, card_request, check_device_selection, used_cards
from shardwright.plan.stages import Plan

DIFFERENT = "NVIDIA_VISIBLE_DEVICES and container.gpus choose different cards"
NO_GPUS: dict[str, Any] = {"gpus": None}


def host(*free: float, names: tuple[str, ...] = ()) -> Facts:
    """Cards of 80 GiB with so much free each."""
    return Facts(gpus=tuple(Gpu(names[i] if names else "card", "9.0", 80.0, size) for i, size in enumerate(free)))


def refused(found: str | None) -> list[str]:
    return [f"device-selection reject: {found}"] if found else []


@pytest.mark.parametrize(
    ("gpus", "request_"),
    [
        ("all", CardRequest()),
        ("2", CardRequest(count=2)),
        ("count=2", CardRequest(count=2)),
        ("all,capabilities=utility", CardRequest()),
        ("driver=nvidia,count=2", CardRequest(count=2)),
        ('"device=4,5"', CardRequest(devices=("4", "5"))),
        ("device=4", CardRequest(devices=("4",))),
        ('"device=4"', CardRequest(devices=("4",))),
        ("all,options=x", CardRequest()),
        ('"device=4, 5",capabilities=utility', CardRequest(devices=("4", "5"))),
        ("capabilities=utility", CardRequest(count=1)),
    ],
)
def test_a_card_request_reads_as_docker_reads_it(gpus: str, request_: CardRequest) -> None:
    assert card_request(gpus) == request_


@pytest.mark.parametrize(
    ("gpus", "problem"),
    [
        ("device=4,5", "it names devices and a count, since the comma stands outside of quotes"),
        ("'device=4'", "\"'device=4'\" is no part of a card request"),
        ("2x", "'2x' is no number of cards"),
        ("count=some", "'some' is no number of cards"),
        ("cards=2", "'cards=2' is no part of a card request"),
        ("device=0,device=1", "it names device twice"),
        ("2,3", "it names count twice"),
        ("", "it is empty"),
    ],
)
def test_a_card_request_that_docker_refuses_is_refused_here(gpus: str, problem: str) -> None:
    asked = deployed(container={"gpus": gpus})
    assert said(check_device_selection, asked) == refused(f"container.gpus {gpus!r}: {problem}")
    assert "write gpus: '\"device=0,1\"'" in fixes(check_device_selection, asked)[0]


@pytest.mark.parametrize(
    ("tensor", "env", "found"),
    [
        (2, {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        (2, {"CUDA_VISIBLE_DEVICES": "0, 1,"}, None),
        (2, {"CUDA_VISIBLE_DEVICES": "1,0,2"}, None),
        (2, {"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES gives 1 devices, but 2 ranks run on this host"),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES gives 0 devices, but 2 ranks run on this host"),
        # CUDA stops at the first name that is no card.
        (2, {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, "CUDA_VISIBLE_DEVICES gives 1 devices, but 2 ranks run on this host"),
        (2, {"CUDA_VISIBLE_DEVICES": "0,1,-1"}, None),
        (2, {"HIP_VISIBLE_DEVICES": "0"}, "HIP_VISIBLE_DEVICES gives 1 devices, but 2 ranks run on this host"),
        (2, {"CUDA_VISIBLE_DEVICES": "0,1,1"}, "CUDA_VISIBLE_DEVICES names a device twice: 0,1,1"),
        (2, {"CUDA_VISIBLE_DEVICES": "all"}, "CUDA_VISIBLE_DEVICES names 'all', which is no device"),
        (2, {"CUDA_VISIBLE_DEVICES": "0;1"}, "CUDA_VISIBLE_DEVICES names '0;1', which is no device"),
        (2, {"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, None),
        (
            2,
            {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"},
            "CUDA_VISIBLE_DEVICES names MIG slices, and 2 ranks run on this host",
        ),
        (1, {"CUDA_VISIBLE_DEVICES": "MIG-1"}, None),
        (
            1,
            {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"},
            "devices are chosen twice: CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES",
        ),
        (2, {"NVIDIA_VISIBLE_DEVICES": "all"}, None),
        (2, {"NVIDIA_VISIBLE_DEVICES": "void"}, None),
        (2, {"NVIDIA_VISIBLE_DEVICES": "none"}, None),
        (2, {"NVIDIA_VISIBLE_DEVICES": ""}, None),
        (2, {"NVIDIA_VISIBLE_DEVICES": "0"}, "NVIDIA_VISIBLE_DEVICES gives 1 devices, but 2 ranks run on this host"),
        (1, {"NVIDIA_VISIBLE_DEVICES": "3"}, DIFFERENT),
    ],
)
def test_devices_are_enough_distinct_and_chosen_once(tensor: int, env: dict[str, str], found: str | None) -> None:
    assert said(check_device_selection, deployed(tensor=tensor, env=env))[:1] == refused(found)


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        ("2,3", None),
        ("none", "NVIDIA_VISIBLE_DEVICES gives 0 devices, but 2 ranks run on this host"),
        ("void", "NVIDIA_VISIBLE_DEVICES gives 0 devices, but 2 ranks run on this host"),
        ("", "NVIDIA_VISIBLE_DEVICES gives 0 devices, but 2 ranks run on this host"),
        ("0:0,0:1", "NVIDIA_VISIBLE_DEVICES names MIG slices, and 2 ranks run on this host"),
        ("0:a,1", "NVIDIA_VISIBLE_DEVICES names '0:a', which is no device"),
        ("all", None),
    ],
)
def test_without_a_card_request_the_variable_alone_decides(variable: str, found: str | None) -> None:
    asked = deployed(tensor=2, env={"NVIDIA_VISIBLE_DEVICES": variable}, container=NO_GPUS)
    assert said(check_device_selection, asked) == refused(found)


@pytest.mark.parametrize(
    ("gpus", "variable", "found"),
    [
        ('"device=2,3"', "2,3", None),
        ('"device=2,3"', "3,2", None),
        ('"device=2,3"', "all", None),
        ('"device=2,3"', "0,1", DIFFERENT),
        ("all", "2,3", DIFFERENT),
        ("2", "2,3", DIFFERENT),
    ],
)
def test_the_variable_and_the_card_request_agree(gpus: str, variable: str, found: str | None) -> None:
    asked = deployed(tensor=2, env={"NVIDIA_VISIBLE_DEVICES": variable}, container={"gpus": gpus})
    assert said(check_device_selection, asked) == refused(found)
    if found:
        assert fixes(check_device_selection, asked) == [
            f"""write container: {{gpus: '"device={variable}"'}} and remove the variable"""
        ]


def test_devices_by_flag_count_like_those_by_variable() -> None:
    assert said(check_device_selection, deployed("--device-ids 0,1", tensor=2)) == []
    assert said(check_device_selection, deployed("--device-ids 0,", tensor=2)) == refused(
        "--device-ids gives 1 devices, but 2 ranks run on this host"
    )
    (too_few,) = check_device_selection(deployed("--device-ids 0", tensor=2), Plan(), Facts())
    assert too_few.why == ""
    both = deployed("--device-ids 0", env={"CUDA_VISIBLE_DEVICES": "0"})
    assert fixes(check_device_selection, both) == ["keep CUDA_VISIBLE_DEVICES only"]


def test_all_ranks_of_this_host_and_no_others_need_devices() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert said(check_device_selection, deployed("--nnodes 2", tensor=4, env=env)) == []
    assert len(said(check_device_selection, deployed("--nnodes 2", tensor=8, env=env))) == 1
    assert said(check_device_selection, deployed("--data-parallel-size 2", tensor=2, env=env)) == refused(
        "CUDA_VISIBLE_DEVICES gives 2 devices, but 4 ranks run on this host"
    )
    for part in ("--data-parallel-size-local 1", "--data-parallel-rank 0"):
        assert said(check_device_selection, deployed("--data-parallel-size 2", part, tensor=2, env=env)) == []
    alone = deployed("--data-parallel-size 2", "--data-parallel-rank 0", tensor=4, env=env)
    assert len(said(check_device_selection, alone)) == 1
    assert (
        said(check_device_selection, deployed(tensor=4, env=env, engine={"platform": "cpu"}, container=NO_GPUS)) == []
    )


@pytest.mark.parametrize(
    ("gpus", "tensor", "visible", "found"),
    [
        ("2", 2, None, None),
        ("2", 3, None, "container.gpus passes 2 cards, but 3 ranks run on this host"),
        ('"device=4,5"', 2, None, None),
        ('"device=4,5"', 3, None, "container.gpus gives 2 devices, but 3 ranks run on this host"),
        ('"device=4,4"', 2, None, "container.gpus names a device twice: 4,4"),
        ('"device=0:0,0:1"', 2, None, "container.gpus names MIG slices, and 2 ranks run on this host"),
        ("all", 9, None, None),
        ("2", 1, "1", None),
        ("2", 1, "2", "CUDA_VISIBLE_DEVICES names device 2, but the container gets 2 cards, numbered from 0"),
        (
            '"device=4,5"',
            1,
            "4",
            "CUDA_VISIBLE_DEVICES names device 4, but the container gets 2 cards, numbered from 0",
        ),
        ("device=4", 1, "0", None),
        ("2", 1, "GPU-abc", None),
    ],
)
def test_a_container_numbers_its_cards_from_0(gpus: str, tensor: int, visible: str | None, found: str | None) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    asked = deployed(tensor=tensor, env=env, container={"gpus": gpus})
    assert said(check_device_selection, asked) == refused(found)
    assert (
        said(check_device_selection, deployed(tensor=tensor, env=env, container={"gpus": gpus}, runtime="local")) == []
    )
    if visible is not None:
        by_flag = deployed(f"--device-ids {visible}", tensor=tensor, container={"gpus": gpus})
        expected = found and found.replace("CUDA_VISIBLE_DEVICES", "--device-ids")
        assert said(check_device_selection, by_flag) == refused(expected)


def test_the_variable_passes_cards_that_are_numbered_from_0_too() -> None:
    def asked(visible: str) -> list[str]:
        env = {"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": visible}
        return said(check_device_selection, deployed(tensor=2, env=env, container=NO_GPUS), host(80, 80, 80, 80))

    assert asked("0,1") == []
    assert asked("2,3") == refused(
        "CUDA_VISIBLE_DEVICES names device 2, but the container gets 2 cards, numbered from 0"
    )


@pytest.mark.parametrize(
    ("gpus", "env", "found"),
    [
        ("all", {"CUDA_VISIBLE_DEVICES": "3"}, None),
        ("all", {"CUDA_VISIBLE_DEVICES": "4"}, "CUDA_VISIBLE_DEVICES names device 4"),
        ("device=3", {}, None),
        ("device=4", {}, "container.gpus names device 4"),
        ("5", {}, "container.gpus names device 4"),
        ("4", {}, None),
        (None, {"NVIDIA_VISIBLE_DEVICES": "4"}, "NVIDIA_VISIBLE_DEVICES names device 4"),
        (None, {"NVIDIA_VISIBLE_DEVICES": "3"}, None),
    ],
)
def test_a_device_is_one_of_the_hosts(gpus: str | None, env: dict[str, str], found: str | None) -> None:
    asked = deployed(env=env, container={"gpus": gpus})
    there = said(check_device_selection, asked, host(80, 80, 80, 80))
    assert there == refused(found and f"{found}, but the host has 4 cards, numbered from 0")
    assert said(check_device_selection, asked) == []


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        (("nvidia.com/gpu=0", "nvidia.com/gpu=1", "/dev/infiniband"), None),
        (("nvidia.com/gpu=all",), None),
        (("nvidia.com/gpu=all", "nvidia.com/gpu=0"), None),
        (("/dev/infiniband",), None),
        (("nvidia.com/gpu=0",), "container.devices gives 1 devices, but 2 ranks run on this host"),
        (("nvidia.com/gpu=0", "nvidia.com/gpu=0"), "container.devices names a device twice: 0,0"),
    ],
)
def test_cards_that_are_passed_one_by_one_are_enough(devices: tuple[str, ...], found: str | None) -> None:
    container: dict[str, Any] = {"gpus": None, "devices": devices}
    assert said(check_device_selection, deployed(tensor=2, container=container)) == refused(found)
    assert said(check_device_selection, deployed(tensor=2, container=container, runtime="local")) == []


def test_a_container_of_two_hosts_passes_the_cards_of_one() -> None:
    assert said(check_device_selection, deployed("--nnodes 2", tensor=4, container={"gpus": "2"})) == []
    assert len(said(check_device_selection, deployed("--nnodes 2", tensor=6, container={"gpus": "2"}))) == 1


@pytest.mark.parametrize(
    ("names", "env", "speaks"),
    [
        (("A", "B"), {"CUDA_VISIBLE_DEVICES": "1,0"}, True),
        (("A", "B"), {"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True),
        (("A", "B"), {"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        (("A", "A"), {"CUDA_VISIBLE_DEVICES": "1,0"}, False),
        (("A", "B"), {}, False),
    ],
)
def test_numbers_of_unlike_cards_need_an_order(names: tuple[str, ...], env: dict[str, str], speaks: bool) -> None:
    text = "device-selection warn: CUDA_VISIBLE_DEVICES numbers cards that differ (A, B), without CUDA_DEVICE_ORDER"
    found = said(check_device_selection, deployed(tensor=2, env=env), host(80, 80, names=names))
    assert found == ([text] if speaks else [])


@pytest.mark.parametrize(
    ("gpus", "env", "tensor", "used"),
    [
        ("all", {}, 1, (0,)),
        ("all", {}, 4, (0, 1, 2, 3)),
        ("3", {}, 2, (0, 1)),
        ('"device=3,1"', {}, 2, (3, 1)),
        ('"device=3,1"', {"CUDA_VISIBLE_DEVICES": "1"}, 1, (1,)),
        ("all", {"CUDA_VISIBLE_DEVICES": "2,3"}, 2, (2, 3)),
        ("all", {"NVIDIA_VISIBLE_DEVICES": "2,3"}, 2, (0, 1)),
        (None, {"NVIDIA_VISIBLE_DEVICES": "2,3"}, 2, (2, 3)),
        ("all", {"CUDA_VISIBLE_DEVICES": "3,4"}, 2, (3,)),
        ("all", {"CUDA_VISIBLE_DEVICES": "GPU-1"}, 1, None),
    ],
)
def test_the_ranks_take_the_cards_that_are_chosen_in_their_order(
    gpus: str | None, env: dict[str, str], tensor: int, used: tuple[int, ...] | None
) -> None:
    found = used_cards(deployed(tensor=tensor, env=env, container={"gpus": gpus}), host(80, 80, 80, 80))
    assert (None if found is None else tuple(number for number, _ in found)) == used


def test_cards_that_are_passed_one_by_one_are_the_ones_that_are_taken() -> None:
    container: dict[str, Any] = {"gpus": None, "devices": ("nvidia.com/gpu=3", "nvidia.com/gpu=1")}
    found = used_cards(deployed(tensor=2, container=container), host(80, 80, 80, 80))
    assert found is not None and [number for number, _ in found] == [3, 1]


def test_cards_that_nobody_looked_at_are_not_known_and_a_local_engine_gets_no_container() -> None:
    assert used_cards(deployed(), Facts()) is None
    local = used_cards(deployed(container={"gpus": "device=1"}, runtime="local"), host(80, 80))
    assert local is not None and [number for number, _ in local] == [0]


def test_only_the_cards_that_the_ranks_take_need_free_memory() -> None:
    share = "--gpu-memory-utilization 0.5"
    busy_last, busy_first = host(80, 80, 5), host(5, 80, 80)
    assert said(check_free_memory, deployed(share, tensor=2), busy_last) == []
    assert said(check_free_memory, deployed(share, tensor=2), busy_first)[0].startswith("free-memory reject: card 0: 5")
    chosen = deployed(share, tensor=2, container={"gpus": '"device=1,2"'})
    assert said(check_free_memory, chosen, busy_first) == []
    assert said(check_free_memory, chosen, busy_last)[0].startswith("free-memory reject: card 2: 5")


def test_cards_that_are_chosen_by_name_are_refused_where_too_few_have_room() -> None:
    named = deployed("--gpu-memory-utilization 0.5", tensor=2, env={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"})
    assert said(check_free_memory, named, host(80, 80, 5)) == []
    assert [text[:26] for text in said(check_free_memory, named, host(80, 5, 5))] == [
        "free-memory reject: card 1",
        "free-memory reject: card 2",
    ]


def test_only_the_cards_that_the_ranks_take_are_compared() -> None:
    facts = Facts(gpus=tuple(Gpu("card", "9.0", size) for size in (80.0, 80.0, 40.0)))
    assert said(check_uneven_cards, deployed(tensor=2), facts) == []
    chosen = deployed(tensor=2, env={"CUDA_VISIBLE_DEVICES": "1,2"})
    assert said(check_uneven_cards, chosen, facts) == ["uneven-cards info: cards of 40 and 80 GiB in one deployment"]
    assert len(said(check_uneven_cards, deployed(tensor=2, env={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}), facts)) == 1


def test_stages_of_one_card_each_may_differ() -> None:
    facts = Facts(gpus=(Gpu("card", "9.0", 80.0), Gpu("card", "9.0", 40.0)))
    assert said(check_uneven_cards, deployed(pipeline=2), facts) == []


@pytest.mark.parametrize(
    ("count", "device", "found"),
    [
        (1000, 999, None),
        (1000, 1000, "CUDA_VISIBLE_DEVICES names device 1000, but the container gets 1000 cards, numbered from 0"),
        (10**14, 1000, "CUDA_VISIBLE_DEVICES names device 1000, but the container gets 1000 cards, numbered from 0"),
    ],
)
def test_an_absurd_count_of_cards_is_not_spelled_out(count: int, device: int, found: str | None) -> None:
    what = deployed(container={"gpus": str(count)}, env={"CUDA_VISIBLE_DEVICES": str(device)})
    assert said(check_device_selection, what, Facts()) == refused(found)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "info"),
        ({"container": {**NO_GPUS, "devices": ("nvidia.com/gpu=all",)}}, None),
        ({"container": {**NO_GPUS, "privileged": True}}, None),
        ({"container": {"gpus": "all"}}, None),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, None),
        ({"runtime": "local"}, None),
        ({"engine": {"platform": "rocm"}}, None),
    ],
)
def test_a_container_that_is_given_no_card_is_told_of(changes: dict[str, Any], verdict: str | None) -> None:
    asked = deployed(**{"container": NO_GPUS, **changes})
    text = "container.gpus is not set, and no device is passed"
    assert said(check_device_selection, asked) == ([f"device-selection {verdict}: {text}"] if verdict else [])
    without = Facts(host=Host(runtimes=("runc",)))
    assert said(check_device_selection, asked, without) == ([f"device-selection reject: {text}"] if verdict else [])
    having = Facts(host=Host(runtimes=("nvidia", "runc")))
    assert said(check_device_selection, asked, having) == said(check_device_selection, asked)
