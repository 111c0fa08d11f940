"""Borders of what the hosts of one deployment list and report of themselves."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, said
from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.gates.nodes import check_nodes_agree
from shardwright.layout.schema import Node


def nodes(*ranks: int) -> tuple[Node, ...]:
    return tuple(Node(rank, f"192.0.2.{rank}", None) for rank in ranks)


def test_nodes_have_ranks_of_their_own() -> None:
    assert said(check_nodes_agree, deployed(nodes=nodes(1, 0, 2))) == []
    assert said(check_nodes_agree, deployed(nodes=nodes(1, 0, 1)))[:1] == [
        "nodes-agree reject: two nodes have the same rank: 0,1,1"
    ]


OWN = (
    *("rank", "address", "name", "host", "hostname", "node_rank", "gpus", "facts", "interfaces", "ip", "host_ip"),
    *("node_ip", "role", "hca", "memory_gib", "shm_gib", "disk_free_gib", "listening"),
)
OWN_ENV = (
    "VLLM_HOST_IP",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "UCX_NET_DEVICES",
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HOSTNAME", "HOST_IP", "NODE_RANK"),
    *("VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL", "VLLM_NIXL_SIDE_CHANNEL_HOST"),
)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        *(({key: 2}, {key: 1}, None) for key in OWN),
        *(({"env": {name: "a"}}, {"env": {name: "b"}}, None) for name in OWN_ENV),
        ({"image": "a"}, {"image": "a"}, None),
        ({"partition": "41,37"}, {"partition": [41, 37]}, None),
        ({"partition": "41, 37"}, {"partition": "41,37"}, None),
        ({"partition": None}, {}, None),
        ({"partition": [41, 37]}, {"partition": None}, "partition unset != 41,37"),
        ({"other": "a b"}, {"other": "ab"}, "other ab != a b"),
        # Each host may have a token of its own, and none is shown.
        ({"env": {"HF_TOKEN": "abc"}}, {"env": {"HF_TOKEN": "abd"}}, None),
        ({"env": {"HF_TOKEN": "abc"}}, {"env": {}}, None),
        ({"env": {}}, {"env": {"HF_TOKEN": "abc"}}, None),
        ({"key": "hf_" + "A1" * 10}, {"key": "b"}, "key b != (a secret)"),
        ({"image": "a"}, {"image": "b"}, "image b != a"),
        ({"image": "a"}, {}, "image unset != a"),
        ({}, {"image": "b"}, "image b != unset"),
        ({"env": {"A": "1"}}, {"env": {"A": "2"}}, "env A 2 != 1"),
        ({"env": {"A": "1"}}, {}, "env A unset != 1"),
        ({}, {"env": {"A": "2"}}, "env A 2 != unset"),
        ({"env": {"A": "1"}}, {"env": 5}, "env A unset != 1"),
        ({"env": 5}, {"env": {"A": "1"}}, "env A 1 != unset"),
        (
            {"image": "a", "env": {"B": "1", "A": "1"}},
            {"image": "b", "env": {}},
            "env A unset != 1; env B unset != 1; image b != a",
        ),
    ],
)
def test_nodes_would_run_the_same_but_for_what_is_their_own(
    first: dict[str, Any], second: dict[str, Any], found: str | None
) -> None:
    facts = Facts(nodes=({"rank": 0, **first}, {"rank": 1, **second}))
    # A rank that the row itself gives is that of the row.
    one, other = (2, 1) if "rank" in first else (0, 1)
    text = f"nodes-agree reject: node {other} differs from node {one}: {found}"
    assert said(check_nodes_agree, deployed(), facts) == ([text] if found else [])


def test_every_node_is_compared_with_the_one_of_the_lowest_rank() -> None:
    rows = ({"node_rank": 2, "image": "c"}, {"rank": 1, "image": "b"}, {"rank": 0, "image": "a"})
    assert said(check_nodes_agree, deployed(), Facts(nodes=rows)) == [
        "nodes-agree reject: node 1 differs from node 0: image b != a",
        "nodes-agree reject: node 2 differs from node 0: image c != a",
    ]
    unnumbered = ({"image": "a"}, {"image": "b"}, {"rank": "x", "image": "c"})
    assert [text[:43] for text in said(check_nodes_agree, deployed(), Facts(nodes=unnumbered))] == [
        "nodes-agree reject: node 1 differs from nod",
        "nodes-agree reject: node 2 differs from nod",
    ]
    assert said(check_nodes_agree, deployed(), Facts(nodes=rows[:1])) == []
    assert len(said(check_nodes_agree, deployed(), Facts(nodes=rows[:2]))) == 1


def test_two_hosts_do_not_report_the_same_rank() -> None:
    rows = ({"rank": 0}, {"node_rank": 0}, {"rank": "x"})
    assert said(check_nodes_agree, deployed(), Facts(nodes=rows)) == [
        "nodes-agree reject: two nodes have the same rank: 0,0"
    ]


@pytest.mark.parametrize(
    ("ranks", "flags", "found"),
    [
        ((0, 1), (), None),
        ((0, 1), ("--nnodes 2",), None),
        ((), ("--nnodes 2",), None),
        ((0, 1), ("--nnodes 3",), "nodes: lists 2 hosts, and --nnodes says 3"),
        ((0, 2), (), "nodes: lists no node of rank 1"),
        ((1, 2), (), "nodes: lists no node of rank 0"),
        ((0,), (), None),
    ],
)
def test_the_layout_lists_one_host_for_each_rank(ranks: Any, flags: tuple[str, ...], found: str | None) -> None:
    asked = deployed(*flags, nodes=nodes(*ranks))
    assert said(check_nodes_agree, asked) == ([f"nodes-agree reject: {found}"] if found else [])


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (("192.0.2.1", "192.0.2.2"), []),
        (("192.0.2.1", "192.0.2.1"), ["two nodes have the same address: 192.0.2.1"]),
        (("127.0.0.1", "192.0.2.1"), ["node 0 has the address 127.0.0.1, which is every host's own"]),
        (("192.0.2.1", "localhost"), ["node 1 has the address localhost, which is every host's own"]),
        (("127.0.0.1",), []),
    ],
)
def test_each_host_has_an_address_that_the_others_reach(addresses: tuple[str, ...], found: list[str]) -> None:
    listed = tuple(Node(rank, address, None) for rank, address in enumerate(addresses))
    assert said(check_nodes_agree, deployed(nodes=listed)) == [f"nodes-agree reject: {text}" for text in found]


def test_the_number_of_cards_that_is_missing_is_shown() -> None:
    facts = Facts(nodes=({"rank": 1, "gpus": [{"count": 4}, {}, "b"]},))
    assert said(check_nodes_agree, deployed(tensor=8), facts) == [
        "nodes-agree reject: node 1 has 6 cards, and 8 ranks would run on it"
    ]


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (8, False),
        (7, True),
        ([{"count": 8}], False),
        ([{"count": 4}, {}], True),
        (["a"] * 8, False),
        ([{}] * 7, True),
        ("many", False),
        ([{"count": "some"}], False),
        ([{"count": None}, {"count": 1}], False),
    ],
)
def test_each_host_has_the_cards_for_its_ranks(gpus: Any, found: bool) -> None:
    facts = Facts(nodes=({"rank": 0, "gpus": 8}, {"rank": 1, "gpus": gpus}))
    texts = said(check_nodes_agree, deployed("--nnodes 2", tensor=16), facts)
    assert len(texts) == found
    assert all(text.endswith("cards, and 8 ranks would run on it") and "reject: node 1 has" in text for text in texts)
    first = Facts(nodes=({"rank": 0, "gpus": gpus}, {"rank": 1, "gpus": 8}))
    assert len(said(check_nodes_agree, deployed("--nnodes 2", tensor=16), first)) == found


def test_the_hosts_report_the_partition_of_the_layout() -> None:
    facts = Facts(nodes=({"rank": 0, "partition": [39, 39]},))
    text = "nodes-agree reject: the nodes report the partition 39,39, and the layout says 41,37"
    assert said(check_nodes_agree, replace(deployed(), partition="41,37"), facts) == [text]
    assert said(check_nodes_agree, replace(deployed(), partition="39,39"), facts) == []
    assert said(check_nodes_agree, deployed(), facts) == []
    assert said(check_nodes_agree, replace(deployed(), partition="41,37"), Facts(nodes=({"rank": 0},))) == []


@pytest.mark.parametrize(
    ("runs", "asked", "found"),
    [
        ("0.28.0", "0.30.0", True),
        ("v0.28", "0.30.0", True),
        ("0.30.0", "0.30.0", False),
        ("0.30", "0.30.0+cpu", False),
        ("of our own", "0.30.0", False),
        ("0.28.0", "0.30.0.dev1", False),
        (None, "0.30.0", False),
    ],
)
def test_the_hosts_run_the_version_of_the_layout(runs: str | None, asked: str, found: bool) -> None:
    facts = Facts(nodes=({"rank": 0, "vllm": runs},))
    text = "nodes-agree reject: the nodes run vLLM 0.28.0, and the layout says 0.30.0"
    assert said(check_nodes_agree, deployed(engine={"vllm": asked}), facts) == ([text] if found else [])
    assert said(check_nodes_agree, deployed(), Facts(nodes=({"rank": 0},))) == []
