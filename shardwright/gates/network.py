"""Several hosts: arithmetic of nodes and cards, addresses, and whether all hosts would run the same thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import node_count, number_of, value_of, whole_number, world_size
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

_OWN_KEYS = frozenset({"rank", "address", "name", "host", "hostname", "node_rank", "gpus", "facts", "interfaces"})
# Variables that rightly differ between hosts.
_OWN_ENV = frozenset(
    {"VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"}
)
_LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")


def check_world_size(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`world-size`: the ranks spread evenly over the hosts, and each host has a card for each of its own."""
    world, nodes = world_size(deployment), node_count(deployment)
    data = number_of(deployment, "--data-parallel-size", 1)
    shape = _shape(deployment)
    rank = whole_number(value_of(deployment, "--node-rank"))
    findings = []
    if rank is not None and nodes > 1 and rank >= nodes:
        text = f"--node-rank {rank} is not below --nnodes {nodes}"
        findings.append(Finding("world-size", "reject", text, fix=f"number the nodes 0 to {nodes - 1}"))
    if (world * data) % nodes:
        text = f"{nodes} nodes do not divide {world * data} ranks ({shape})"
        why = "the engine raises '--nnodes must evenly divide the total world size'"
        findings.append(Finding("world-size", "reject", text, why=why, fix="change TP, PP or the number of nodes"))
        return findings
    executor = value_of(deployment, "--distributed-executor-backend")
    cards = _cards(deployment, facts)
    local = number_of(deployment, "--data-parallel-size-local", data) or 1
    needed = world * local if nodes == 1 else world * data // nodes
    if cards is not None and deployment.platform != "cpu" and executor != "ray" and needed > cards[0]:
        have, source = cards
        findings.append(
            Finding(
                "world-size",
                "reject",
                f"{needed} ranks on one host ({shape}), but {source} has {have} cards",
                why=f"the engine raises 'World size ({needed}) is larger than the number of available GPUs ({have})'",
                fix="lower TP, PP or PCP; or spread over hosts with nodes: and serve: {nnodes: N}",
            )
        )
    return findings


def _shape(deployment: Deployment) -> str:
    parts = [f"TP={deployment.parallel.tensor}", f"PP={deployment.parallel.pipeline}"]
    for name, flag in (("PCP", "--prefill-context-parallel-size"), ("DP", "--data-parallel-size")):
        value = number_of(deployment, flag, 1)
        if value != 1:
            parts.append(f"{name}={value}")
    return ", ".join(parts)


def _cards(deployment: Deployment, facts: Facts) -> tuple[int, str] | None:
    """How many cards one host has, and who says so."""
    if facts.gpus:
        return len(facts.gpus), "the host"
    if deployment.hardware is not None:
        return deployment.hardware.gpus, "hardware: of the layout"
    return None


def check_master_address(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`master-address`: the other hosts can reach the first one."""
    nodes = node_count(deployment)
    executor = value_of(deployment, "--distributed-executor-backend")
    if nodes == 1 or executor in ("ray", "external_launcher") or deployment.engine.command is not None:
        return []
    if number_of(deployment, "--nnodes", 0) == 0:
        return []
    address = value_of(deployment, "--master-addr")
    if address is None:
        text = f"{nodes} nodes, but no --master-addr"
        why = "every host would wait for the others at its own 127.0.0.1"
        return [Finding("master-address", "reject", text, why=why, fix="write serve: {master_addr: ADDRESS OF NODE 0}")]
    if address.startswith(_LOOPBACK):
        text = f"--master-addr {address} is this host's own address on every host"
        return [Finding("master-address", "reject", text, fix="write the address of node 0 that the others reach")]
    first = next((node.address for node in deployment.nodes if node.rank == 0), None)
    if first is not None and first != address:
        text = f"--master-addr {address} is not the address {first} of the node with rank 0"
        return [Finding("master-address", "reject", text, fix=f"write serve: {{master_addr: {first}}}")]
    return []


def check_nodes_agree(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`nodes-agree`: image, overlays, partition and environment are the same on every host."""
    ranks = [node.rank for node in deployment.nodes]
    findings = []
    if len(set(ranks)) < len(ranks):
        text = f"two nodes have the same rank: {','.join(str(rank) for rank in sorted(ranks))}"
        findings.append(Finding("nodes-agree", "reject", text, fix="number the nodes 0, 1, 2, ..."))
    if not facts.nodes:
        return findings
    first, *others = sorted(facts.nodes, key=lambda node: _rank(node, facts.nodes))
    name = _rank(first, facts.nodes)
    for other in others:
        differences = _differences(first, other)
        if differences:
            findings.append(
                Finding(
                    "nodes-agree",
                    "reject",
                    f"node {_rank(other, facts.nodes)} differs from node {name}: {'; '.join(differences)}",
                    why="each host works out its own layers and code: layers run twice or not at all, without an error",
                    fix="one image digest, one overlay and one environment on all nodes",
                )
            )
    return findings


def _rank(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> int:
    rank = node.get("rank", node.get("node_rank"))
    return rank if isinstance(rank, int) else list(nodes).index(node)


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    found = []
    for key in sorted({*first, *other} - _OWN_KEYS):
        left, right = first.get(key), other.get(key)
        if isinstance(left, Mapping) or isinstance(right, Mapping):
            mine = left if isinstance(left, Mapping) else {}
            theirs = right if isinstance(right, Mapping) else {}
            names = sorted({*mine, *theirs} - _OWN_ENV)
            found += [
                f"{key} {name} {_shown(theirs.get(name))} != {_shown(mine.get(name))}"
                for name in names
                if mine.get(name) != theirs.get(name)
            ]
        elif left != right:
            found.append(f"{key} {_shown(right)} != {_shown(left)}")
    return found


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
