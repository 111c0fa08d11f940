"""`nodes-agree`: the hosts of one deployment are numbered, distinct, large enough, and would run the same thing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwright.facts.engine_tables import release
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import is_loopback, local_ranks, number_of
from shardwright.gates.secret_texts import looks_secret, names_secret
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "nodes-agree"

# What rightly differs between hosts: who they are, and what they have.
_OWN_KEYS = frozenset(
    (
        *("rank", "address", "name", "host", "hostname", "node_rank", "gpus", "facts", "interfaces", "ip", "host_ip"),
        *("node_ip", "role", "hca", "memory_gib", "shm_gib", "disk_free_gib", "listening"),
    )
)
_OWN_ENV = frozenset(
    (
        *("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA"),
        *("UCX_NET_DEVICES", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HOSTNAME"),
        *("HOST_IP", "NODE_RANK", "VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL", "VLLM_NIXL_SIDE_CHANNEL_HOST"),
    )
)


def check_nodes_agree(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """What the layout lists is one host for each rank; what the hosts report of themselves is the same."""
    return [*_listed(deployment), *_reported(deployment, facts.nodes)]


def _listed(deployment: Deployment) -> Iterator[Finding]:
    nodes, asked = deployment.nodes, number_of(deployment, "--nnodes", 0)
    ranks = [node.rank for node in nodes]
    yield from _same_rank(ranks)
    missing = next((rank for rank in range(len(ranks)) if rank not in ranks), None)
    if missing is not None:
        text = f"nodes: lists no node of rank {missing}"
        yield Finding(GATE, "reject", text, why="the others wait for it", fix="number the nodes 0, 1, 2, ...")
    if nodes and asked not in (0, len(nodes)):
        text = f"nodes: lists {len(nodes)} hosts, and --nnodes says {asked}"
        yield Finding(GATE, "reject", text, fix=f"write serve: {{nnodes: {len(nodes)}}}, or list {asked} nodes")
    if len(nodes) < 2:
        return
    addresses = [node.address for node in nodes]
    twice = sorted({address for address in addresses if addresses.count(address) > 1})
    if twice:
        text = f"two nodes have the same address: {', '.join(twice)}"
        yield Finding(GATE, "reject", text, why="one host would be asked to be two", fix="correct nodes:")
    for node in nodes:
        if is_loopback(node.address):
            text = f"node {node.rank} has the address {node.address}, which is every host's own"
            yield Finding(GATE, "reject", text, fix="write the address that the other hosts reach")


def _same_rank(ranks: Sequence[int]) -> Iterator[Finding]:
    if len(set(ranks)) < len(ranks):
        text = f"two nodes have the same rank: {','.join(str(rank) for rank in sorted(ranks))}"
        yield Finding(GATE, "reject", text, fix="number the nodes 0, 1, 2, ...")


def _reported(deployment: Deployment, nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    if not nodes:
        return
    yield from _same_rank([rank for node in nodes if (rank := _given_rank(node)) is not None])
    needed = local_ranks(deployment)
    first, *others = sorted(nodes, key=lambda node: _rank(node, nodes))
    for node in (first, *others):
        have = _cards(node.get("gpus"))
        if have is not None and have < needed:
            text = f"node {_rank(node, nodes)} has {have} cards, and {needed} ranks would run on it"
            yield Finding(GATE, "reject", text, fix="spread the ranks evenly over hosts that have as many cards")
    for node in others:
        yield from _differing(first, node, _rank(first, nodes), _rank(node, nodes))
    yield from _unlike_layout(deployment, first)


def _unlike_layout(deployment: Deployment, node: Mapping[str, Any]) -> Iterator[Finding]:
    partition, theirs = deployment.partition, _plain("partition", node.get("partition"))
    if partition is not None and theirs is not None and theirs != partition:
        text = f"the nodes report the partition {theirs}, and the layout says {partition}"
        yield Finding(GATE, "reject", text, fix="unset VLLM_PP_LAYER_PARTITION on the nodes, or correct the layout")
    asked, runs = release(deployment.engine.vllm), release(str(node.get("vllm")).removeprefix("v"))
    if asked is not None and runs is not None and asked != runs:
        text = f"the nodes run vLLM {runs}, and the layout says {deployment.engine.vllm}"
        why = "flags, patches and limits are judged by the version of the layout"
        yield Finding(
            GATE, "reject", text, why=why, fix=f'write engine: {{vllm: "{runs}"}}, or another image on the nodes'
        )


def _differing(first: Mapping[str, Any], other: Mapping[str, Any], one: int, two: int) -> Iterator[Finding]:
    differences = list(_differences(first, other))
    if differences:
        yield Finding(
            GATE,
            "reject",
            f"node {two} differs from node {one}: {'; '.join(differences)}",
            why="each host works out its own layers and code: layers run twice or not at all, without an error",
            fix="one image digest, one overlay and one environment on all nodes",
        )


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*first, *other} - _OWN_KEYS):
        left, right = _plain(key, first.get(key)), _plain(key, other.get(key))
        if isinstance(left, Mapping) or isinstance(right, Mapping):
            mine = left if isinstance(left, Mapping) else {}
            theirs = right if isinstance(right, Mapping) else {}
            for name in sorted({*mine, *theirs} - _OWN_ENV):
                here, there = mine.get(name), theirs.get(name)
                # A token of a host's own changes nothing of what runs, and is never shown.
                if here != there and not names_secret(name, str(here)) and not names_secret(name, str(there)):
                    yield f"{key} {name} {_shown(there)} != {_shown(here)}"
        elif left != right:
            yield f"{key} {_shown(right)} != {_shown(left)}"


def _plain(key: str, value: Any) -> Any:
    """A partition as the engine reads it, whichever way it is written; anything else as it is."""
    if key != "partition" or value is None:
        return value
    return ",".join(str(part) for part in value) if isinstance(value, list) else str(value).replace(" ", "")


def _shown(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return "(a secret)" if looks_secret(text) else text


def _cards(value: Any) -> int | None:
    """How many cards a node reports, as a number or as a list of maps such as `gpus:` of the facts has."""
    if isinstance(value, list):
        counts = [card.get("count", 1) if isinstance(card, Mapping) else 1 for card in value]
        return sum(counts) if all(isinstance(count, int) for count in counts) else None
    return value if isinstance(value, int) else None


def _given_rank(node: Mapping[str, Any]) -> int | None:
    rank = node.get("rank", node.get("node_rank"))
    return rank if isinstance(rank, int) else None


def _rank(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> int:
    rank = _given_rank(node)
    return list(nodes).index(node) if rank is None else rank
