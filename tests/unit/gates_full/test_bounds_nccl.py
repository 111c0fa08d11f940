"""Borders of NCCL's and Gloo's settings: what reads, what is slow, and what reaches the other ranks."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said

from shardwright.facts.facts import Facts
from shardwright.facts.host import Host
from shardwright.gates.nccl import check_nccl


@pytest.mark.parametrize(
    ("name", "value", "slow"),
    [
        ("NCCL_ALGO", "allreduce:tree", True),
        ("NCCL_ALGO", " AllReduce:Tree ", True),
        ("NCCL_ALGO", "ring", False),
        ("NCCL_ALGO", "Tree", True),
        ("NCCL_ALGO", "Tree,Ring", False),
        ("NCCL_ALGO", "^Ring,CollnetDirect,CollnetChain,Collnet,NVLS,NVLSTree,PAT", True),
        ("NCCL_ALGO", "^Tree", False),
        ("NCCL_ALGO", "tree;allreduce:ring", False),
        ("NCCL_ALGO", "ring;allreduce:tree", True),
        ("NCCL_ALGO", "broadcast:tree", False),
        ("NCCL_ALGO", "", False),
        ("NCCL_PROTO", "ll128", True),
        ("NCCL_PROTO", "LL,LL128,Simple", False),
        ("NCCL_MIN_NRINGS", "1", True),
        ("NCCL_MAX_NRINGS", " 1", True),
        ("NCCL_MAX_CTAS", "1", True),
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
    assert found == ([f"nccl info: {name}={value} was measured slower than the default"] if slow else [])


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
    alone = "nccl warn: without peer access and with NCCL_SHM_DISABLE=1 the ranks of one host have only the network"
    found = said(check_nccl, deployed(tensor=tensor, env={"NCCL_P2P_DISABLE": p2p, "NCCL_SHM_DISABLE": shm}))
    assert found == [alone] * speaks
    for level in ("LOC", "loc", "0"):
        by_level = deployed(tensor=tensor, env={"NCCL_P2P_LEVEL": level, "NCCL_SHM_DISABLE": "1"})
        assert said(check_nccl, by_level) == [alone] * (tensor > 1)
    assert said(check_nccl, deployed(tensor=tensor, env={"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"})) == []


BOTH = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("value", "nodes", "interfaces", "found"),
    [
        ("docker0", 2, ("lo", "docker0", "eth0"), "reject: {}=docker0 cannot reach the other nodes"),
        ("docker0", 2, (), "reject: {}=docker0 cannot reach the other nodes"),
        ("docker0,eth0", 2, ("lo", "docker0", "eth0"), None),
        *(
            (name, 2, (), f"reject: {{}}={name} cannot reach the other nodes")
            for name in ("veth1a", "virbr0", "br-1a", "cni0", "podman0")
        ),
        ("docker0", 1, ("lo", "docker0", "eth0"), None),
        ("lo", 2, ("lo", "eth0"), "reject: {}=lo cannot reach the other nodes"),
        ("lo,lo", 2, ("lo", "eth0"), "reject: {}=lo,lo cannot reach the other nodes"),
        ("lo", 1, ("lo", "eth0"), None),
        ("lo,eth0", 2, ("lo", "eth0"), None),
        ("eth0", 2, ("lo", "eth0"), None),
        ("ib0", 2, ("lo", "eth0"), "reject: {}=ib0: this host has no such interface"),
        ("ib0", 2, (), None),
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


@pytest.mark.parametrize(
    ("value", "interfaces", "found"),
    [
        ("eth", ("lo", "eth0"), None),
        ("=eth0", ("lo", "eth0"), None),
        ("=eth", ("lo", "eth0"), "NCCL_SOCKET_IFNAME==eth: this host has no such interface"),
        ("^docker", ("lo", "eth0"), None),
        ("^docker", (), None),
        ("^eth0", ("lo", "docker0", "eth0"), "NCCL_SOCKET_IFNAME=^eth0 cannot reach the other nodes"),
        ("^eth", ("lo", "eth0"), "NCCL_SOCKET_IFNAME=^eth cannot reach the other nodes"),
        ("^=eth", ("lo", "eth0"), None),
        ("^lo,eth", ("lo", "eth0"), "NCCL_SOCKET_IFNAME=^lo,eth: this host has no such interface"),
    ],
)
def test_nccl_takes_prefixes_whole_names_and_all_others(
    value: str, interfaces: tuple[str, ...], found: str | None
) -> None:
    asked = deployed("--nnodes 2", env={BOTH[0]: value, BOTH[1]: "eth0"})
    texts = said(check_nccl, asked, Facts(host=Host(interfaces=interfaces)))
    assert texts == ([f"nccl reject: {found} (case.yaml:1)"] if found else [])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("eth0", None),
        ("eth", "GLOO_SOCKET_IFNAME=eth: this host has no such interface"),
        ("=eth0", "GLOO_SOCKET_IFNAME==eth0: Gloo takes whole names only, without a mark before them"),
        ("^lo", "GLOO_SOCKET_IFNAME=^lo: Gloo takes whole names only, without a mark before them"),
    ],
)
def test_gloo_takes_whole_names_only(value: str, found: str | None) -> None:
    asked = deployed("--nnodes 2", env={"GLOO_SOCKET_IFNAME": value})
    facts = Facts(host=Host(interfaces=("lo", "eth0")))
    assert said(check_nccl, asked, facts) == ([f"nccl reject: {found} (case.yaml:1)"] if found else [])


@pytest.mark.parametrize(
    ("network", "runtime", "nodes", "there"),
    [
        (None, "docker", 1, True),
        ("bridge", "docker", 1, True),
        ("host", "docker", 1, False),
        ("lan", "docker", 1, False),
        (None, "local", 1, False),
        (None, "docker", 2, False),
    ],
)
def test_a_container_behind_a_bridge_has_an_interface_of_its_own(
    network: str | None, runtime: Any, nodes: int, there: bool
) -> None:
    env = dict.fromkeys(BOTH, "eth0")
    asked = deployed(f"--nnodes {nodes}", env=env, container={"network": network}, runtime=runtime)
    assert (said(check_nccl, asked, Facts(host=Host(interfaces=("lo", "enp3s0")))) == []) == there


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("NCCL_P2P_DISABLED", "1", "warn: NCCL_P2P_DISABLED is none of NCCL's variables"),
        ("NCCL_SOKET_IFNAME", "eth0", "warn: NCCL_SOKET_IFNAME is none of NCCL's variables"),
        ("NCCL_SOMETHING_OF_A_FORK", "1", None),
        ("NCCL_P2P_DISABLE", "true", "warn: NCCL_P2P_DISABLE=true does not read and counts as unset"),
        ("NCCL_CUMEM_ENABLE", "off", "warn: NCCL_CUMEM_ENABLE=off does not read and counts as unset"),
        ("NCCL_IGNORE_CPU_AFFINITY", "yes", "warn: NCCL_IGNORE_CPU_AFFINITY=yes does not read and counts as unset"),
        ("NCCL_CUMEM_ENABLE", "-2", None),
        ("NCCL_P2P_DISABLE", " 1 ", None),
        ("NCCL_P2P_DISABLE", "", None),
        ("NCCL_DEBUG", "true", None),
        ("NCCL_P2P_LEVEL", "nvl", None),
        *(("NCCL_P2P_LEVEL", level, None) for level in ("1", "2", "3", "4", "5", "SYS", "phb")),
        ("NCCL_P2P_LEVEL", "6", "warn: NCCL_P2P_LEVEL=6 does not read and counts as unset"),
        ("NCCL_P2P_LEVEL", "NVLINK", "warn: NCCL_P2P_LEVEL=NVLINK does not read and counts as unset"),
        ("NCCL_ALGO", "Rings", "reject: NCCL_ALGO=Rings: NCCL knows no 'rings'"),
        ("NCCL_ALGO", "ring,^treee", "reject: NCCL_ALGO=ring,^treee: NCCL knows no 'treee'"),
        ("NCCL_ALGO", "allreduc:tree", "reject: NCCL_ALGO=allreduc:tree: NCCL knows no 'allreduc'"),
        ("NCCL_ALGO", "x:y", "reject: NCCL_ALGO=x:y: NCCL knows no 'x'"),
        *(
            ("NCCL_ALGO", f"ring;{function}:ring", None)
            for function in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
        ),
        ("NCCL_PROTO", "Simple", None),
        ("NCCL_PROTO", "LL12", "reject: NCCL_PROTO=LL12: NCCL knows no 'll12'"),
    ],
)
def test_a_setting_that_nccl_does_not_read_is_named(name: str, value: str, found: str | None) -> None:
    texts = said(check_nccl, deployed(tensor=2, env={name: value}))
    assert texts == ([f"nccl {found} (case.yaml:1)"] if found else [])


def test_what_to_write_instead_is_named() -> None:
    for env, fix in (
        ({"NCCL_P2P_DISABLED": "1"}, "did you mean NCCL_P2P_DISABLE?"),
        ({"NCCL_P2P_DISABLE": "true"}, 'write NCCL_P2P_DISABLE: "1" or "0"'),
        ({"NCCL_P2P_LEVEL": "x"}, "write one of LOC, NVL, PIX, PXB, PHB, SYS"),
    ):
        assert fixes(check_nccl, deployed(tensor=2, env=env)) == [fix]


@pytest.mark.parametrize(
    ("links", "env", "found"),
    [
        ("pcie", {"NCCL_PROTO": "LL128"}, "warn: NCCL_PROTO asks for LL128, and the cards are joined by PCIe"),
        ("pcie", {"NCCL_PROTO": "LL,LL128"}, "warn: NCCL_PROTO asks for LL128, and the cards are joined by PCIe"),
        ("pcie", {"NCCL_PROTO": "^LL128"}, None),
        ("pcie", {"NCCL_PROTO": "LL"}, None),
        ("all", {"NCCL_PROTO": "LL,LL128"}, None),
        ("all", {"NCCL_P2P_DISABLE": "1"}, "info: the cards have NVLink, and NCCL may not use it: peer access is"),
        ("pairs", {"NCCL_P2P_LEVEL": "LOC"}, "info: the cards have NVLink, and NCCL may not use it: peer access is"),
        ("pcie", {"NCCL_P2P_DISABLE": "1"}, None),
        ("all", {"NCCL_P2P_LEVEL": "NVL"}, None),
        (None, {"NCCL_P2P_DISABLE": "1"}, None),
    ],
)
def test_settings_are_judged_by_the_links_of_the_cards(links: Any, env: dict[str, str], found: str | None) -> None:
    texts = [text for text in said(check_nccl, deployed(tensor=2, env=env), Facts(links=links)) if "slower" not in text]
    assert len(texts) == (found is not None)
    for text in texts:
        assert text.startswith(f"nccl {found}")
    assert [text for text in said(check_nccl, deployed(env=env), Facts(links=links)) if "slower" not in text] == []


@pytest.mark.parametrize(("nodes", "value", "speaks"), [(2, "1", True), (1, "1", False), (2, "0", False)])
def test_hosts_without_infiniband_are_noted(nodes: int, value: str, speaks: bool) -> None:
    found = said(check_nccl, deployed(f"--nnodes {nodes}", tensor=2, env={"NCCL_IB_DISABLE": value}))
    assert found == (["nccl info: NCCL_IB_DISABLE=1 leaves TCP between the hosts"] if speaks else [])


def test_the_interfaces_that_can_be_named_are_named_without_the_loopback() -> None:
    asked = deployed("--nnodes 2", env=dict.fromkeys(BOTH, "lo"))
    assert (
        fixes(check_nccl, asked, Facts(host=Host(interfaces=("lo", "docker0", "eth0", "ib0"))))
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
