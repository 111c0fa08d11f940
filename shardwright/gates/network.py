"""Several hosts: arithmetic of nodes and cards, and the addresses at which they find each other."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import (
    env_of,
    is_loopback,
    local_ranks,
    master_port,
    node_count,
    number_of,
    value_of,
    whole_number,
    world_size,
)
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment


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
    needed = local_ranks(deployment)
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
    """`master-address`: the other hosts can reach the first one, and each host has an address of its own."""
    nodes = node_count(deployment)
    if deployment.engine.command is not None:
        return []
    findings = _own_address(deployment) if nodes > 1 else []
    findings += _replicas(deployment)
    executor = value_of(deployment, "--distributed-executor-backend")
    if nodes == 1 or executor in ("ray", "external_launcher") or number_of(deployment, "--nnodes", 0) == 0:
        return findings
    return findings + _first_node(deployment, nodes)


def _first_node(deployment: Deployment, nodes: int) -> list[Finding]:
    address = value_of(deployment, "--master-addr")
    if address is None:
        text = f"{nodes} nodes, but no --master-addr"
        why = "every host would wait for the others at its own 127.0.0.1"
        return [_refused(text, "write serve: {master_addr: ADDRESS OF NODE 0}", why)]
    if is_loopback(address):
        text = f"--master-addr {address} is this host's own address on every host"
        return [_refused(text, "write the address of node 0 that the others reach")]
    first = next((node.address for node in deployment.nodes if node.rank == 0), None)
    if first is not None and first != address:
        text = f"--master-addr {address} is not the address {first} of the node with rank 0"
        return [_refused(text, f"write serve: {{master_addr: {first}}}")]
    port = master_port(deployment)
    if port == deployment.container.container_port:
        text = f"--master-port {port} is the port that the API listens on"
        return [_refused(text, "write another serve: {master_port: ...}", "the two listen side by side on node 0")]
    return []


def _own_address(deployment: Deployment) -> list[Finding]:
    pair = env_of(deployment, "VLLM_HOST_IP")
    if pair is None or not pair.value or not is_loopback(pair.value):
        return []
    text = f"VLLM_HOST_IP={pair.value} is every host's own address ({pair.origin})"
    return [_refused(text, "leave it out, or write this host's address", "the other hosts look for this one there")]


def _replicas(deployment: Deployment) -> list[Finding]:
    """Replicas by data parallelism on other hosts find the first one by its address."""
    data = number_of(deployment, "--data-parallel-size", 1)
    address = value_of(deployment, "--data-parallel-address")
    elsewhere = number_of(deployment, "--data-parallel-size-local", data) < data
    if address is None or not elsewhere or not is_loopback(address):
        return []
    text = f"--data-parallel-address {address} is this host's own address on every host"
    return [_refused(text, "write the address of the first host that the others reach")]


def _refused(text: str, fix: str, why: str = "") -> Finding:
    return Finding("master-address", "reject", text, why=why, fix=fix)
