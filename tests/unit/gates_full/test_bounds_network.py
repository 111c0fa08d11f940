"""Borders of several hosts: arithmetic of ranks and cards, addresses, and what hosts agree on."""

from __future__ import annotations

import pytest
from deployed import deployed, fixes, said

from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.gates.network import check_master_address, check_world_size
from shardwright.layout.schema import Node
from shardwright.plan.stages import Plan


def cards(count: int) -> Facts:
    return Facts(gpus=(Gpu("card", "9.0", 80.0),) * count)


def nodes(*ranks: int) -> tuple[Node, ...]:
    return tuple(Node(rank, f"192.0.2.{rank}", None) for rank in ranks)


@pytest.mark.parametrize(
    ("flags", "tensor", "pipeline", "have", "needed"),
    [
        ((), 4, 2, 8, None),
        ((), 4, 2, 7, "8 ranks on one host (TP=4, PP=2)"),
        (("--prefill-context-parallel-size 2",), 2, 2, 8, None),
        (("--prefill-context-parallel-size 2",), 2, 2, 7, "8 ranks on one host (TP=2, PP=2, PCP=2)"),
        (("--data-parallel-size 2",), 4, 1, 8, None),
        (("--data-parallel-size 2",), 4, 1, 7, "8 ranks on one host (TP=4, PP=1, DP=2)"),
        (("--data-parallel-size 1",), 8, 1, 7, "8 ranks on one host (TP=8, PP=1)"),
        (("--data-parallel-size 4", "--data-parallel-size-local 2"), 4, 1, 8, None),
        (("--data-parallel-size 4", "--data-parallel-size-local 2"), 4, 1, 7, "8 ranks on one host (TP=4, PP=1, DP=4)"),
        (("--data-parallel-size 4", "--data-parallel-size-local 0"), 4, 1, 4, None),
        (("--data-parallel-size 4", "--data-parallel-size-local 0"), 4, 1, 3, "4 ranks on one host (TP=4, PP=1, DP=4)"),
        (("--nnodes 2",), 8, 1, 4, None),
        (("--nnodes 2",), 8, 1, 3, "4 ranks on one host (TP=8, PP=1)"),
        (("--nnodes 2", "--data-parallel-size 2"), 4, 1, 4, None),
        (("--nnodes 2", "--data-parallel-size 2"), 4, 1, 3, "4 ranks on one host (TP=4, PP=1, DP=2)"),
        (("--distributed-executor-backend ray",), 8, 1, 4, None),
        (("--distributed-executor-backend mp",), 8, 1, 4, "8 ranks on one host (TP=8, PP=1)"),
    ],
)
def test_every_rank_of_a_host_has_a_card(
    flags: tuple[str, ...], tensor: int, pipeline: int, have: int, needed: str | None
) -> None:
    asked = deployed(*flags, tensor=tensor, pipeline=pipeline)
    assert said(check_world_size, asked, cards(have)) == (
        [f"world-size reject: {needed}, but the host has {have} cards"] if needed else []
    )
    on_cpu = deployed(*flags, tensor=tensor, pipeline=pipeline, engine={"platform": "cpu"})
    assert said(check_world_size, on_cpu, cards(have)) == said(check_world_size, asked) == []
    declared = deployed(*flags, tensor=tensor, pipeline=pipeline, hardware=(have, "9.0", 80.0))
    assert said(check_world_size, declared) == (
        [f"world-size reject: {needed}, but hardware: of the layout has {have} cards"] if needed else []
    )


@pytest.mark.parametrize(
    ("flags", "tensor", "found"),
    [
        (("--nnodes 2",), 4, []),
        (("--nnodes 2",), 3, ["2 nodes do not divide 3 ranks (TP=3, PP=1)"]),
        (("--nnodes 3", "--data-parallel-size 3"), 4, []),
        (("--nnodes 3", "--data-parallel-size 2"), 4, ["3 nodes do not divide 8 ranks (TP=4, PP=1, DP=2)"]),
        (("--nnodes 2", "--node-rank 1"), 4, []),
        (("--nnodes 2", "--node-rank 2"), 4, ["--node-rank 2 is not below --nnodes 2"]),
        (("--nnodes 2", "--node-rank 3"), 4, ["--node-rank 3 is not below --nnodes 2"]),
        (("--node-rank 3",), 4, []),
        (
            ("--nnodes 2", "--node-rank 2"),
            3,
            ["--node-rank 2 is not below --nnodes 2", "2 nodes do not divide 3 ranks (TP=3, PP=1)"],
        ),
    ],
)
def test_ranks_spread_evenly_over_numbered_nodes(flags: tuple[str, ...], tensor: int, found: list[str]) -> None:
    assert said(check_world_size, deployed(*flags, tensor=tensor), cards(8)) == [
        f"world-size reject: {t}" for t in found
    ]


def test_the_way_out_numbers_nodes_from_0() -> None:
    asked = deployed("--nnodes 3", "--node-rank 3", tensor=3)
    assert fixes(check_world_size, asked, cards(8)) == ["number the nodes 0 to 2"]


def test_nodes_of_the_layout_count_where_no_flag_does() -> None:
    assert said(check_world_size, deployed(tensor=8, nodes=nodes(0, 1)), cards(4)) == []
    assert len(said(check_world_size, deployed(tensor=8, nodes=nodes(0)), cards(4))) == 1
    assert len(said(check_world_size, deployed("--nnodes 1", tensor=8, nodes=nodes(0, 1)), cards(4))) == 1


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ((), None),
        (("--nnodes 1",), None),
        (("--nnodes 2",), "2 nodes, but no --master-addr"),
        (("--nnodes 2", "--master-addr 192.0.2.0"), None),
        (
            ("--nnodes 2", "--master-addr 192.0.2.5"),
            "--master-addr 192.0.2.5 is not the address 192.0.2.0 of the node with rank 0",
        ),
        (("--nnodes 2", "--master-addr 127.0.1.1"), "--master-addr 127.0.1.1 is this host's own address on every host"),
        (("--nnodes 2", "--master-addr localhost"), "--master-addr localhost is this host's own address on every host"),
        (("--nnodes 2", "--master-addr ::1"), "--master-addr ::1 is this host's own address on every host"),
        (("--nnodes 2", "--master-addr 0.0.0.0"), "--master-addr 0.0.0.0 is this host's own address on every host"),
        (("--nnodes 2", "--distributed-executor-backend ray"), None),
        (("--nnodes 2", "--distributed-executor-backend external_launcher"), None),
        (("--nnodes 2", "--distributed-executor-backend mp"), "2 nodes, but no --master-addr"),
    ],
)
def test_the_other_hosts_reach_the_first(flags: tuple[str, ...], found: str | None) -> None:
    asked = deployed(*flags, nodes=nodes(1, 0))
    assert said(check_master_address, asked) == ([f"master-address reject: {found}"] if found else [])
    assert said(check_master_address, deployed(*flags, nodes=nodes(1, 0), engine={"command": ()})) == []


def test_an_address_is_compared_only_with_a_first_node() -> None:
    assert said(check_master_address, deployed("--nnodes 2", "--master-addr 192.0.2.5", nodes=nodes(1, 2))) == []
    assert said(check_master_address, deployed(nodes=nodes(0, 1))) == []


@pytest.mark.parametrize(("port", "found"), [("29501", True), ("8000", False), ("8001", False)])
def test_the_first_host_waits_at_another_port_than_the_api(port: str, found: bool) -> None:
    flags = ("--nnodes 2", "--master-addr 192.0.2.0")
    asked = deployed(*flags, f"--master-port {port}", container={"container_port": 29501})
    text = f"master-address reject: --master-port {port} is the port that the API listens on"
    assert said(check_master_address, asked) == ([text] if found else [])
    silent = deployed(*flags, container={"container_port": 29501})
    assert said(check_master_address, silent) == [text.replace(port, "29501")]


@pytest.mark.parametrize(
    ("address", "nodes", "found"),
    [
        ("127.0.0.1", 2, True),
        ("localhost", 2, True),
        ("ip6-localhost", 2, True),
        ("[::1]", 2, True),
        ("::", 2, True),
        ("0.0.0.0", 2, True),
        (" 127.0.0.1 ", 2, True),
        ("192.0.2.1", 2, False),
        ("", 2, False),
        ("127.0.0.1", 1, False),
    ],
)
def test_an_address_of_its_own_is_no_address_for_the_others(address: str, nodes: int, found: bool) -> None:
    flags = (f"--nnodes {nodes}", "--distributed-executor-backend ray")
    text = f"master-address reject: VLLM_HOST_IP={address} is every host's own address (case.yaml:1)"
    assert said(check_master_address, deployed(*flags, env={"VLLM_HOST_IP": address})) == ([text] if found else [])


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--data-parallel-size 4", "--data-parallel-size-local 2", "--data-parallel-address 127.0.0.1"), True),
        (("--data-parallel-size 4", "--data-parallel-size-local 2", "--data-parallel-address 192.0.2.1"), False),
        (("--data-parallel-size 4", "--data-parallel-size-local 4", "--data-parallel-address 127.0.0.1"), False),
        (("--data-parallel-size 4", "--data-parallel-address 127.0.0.1"), False),
        (("--data-parallel-size 4", "--data-parallel-size-local 2"), False),
        (("--data-parallel-size-local 0", "--data-parallel-address 127.0.0.1"), True),
        (("--data-parallel-size-local 1", "--data-parallel-address 127.0.0.1"), False),
    ],
)
def test_replicas_on_other_hosts_find_the_first(flags: tuple[str, ...], found: bool) -> None:
    text = "master-address reject: --data-parallel-address 127.0.0.1 is this host's own address on every host"
    assert said(check_master_address, deployed(*flags)) == ([text] if found else [])
    assert [finding.why for finding in check_master_address(deployed(*flags), Plan(), Facts())] == [""] * found
