"""Settings of NCCL and Gloo: unread, breaking, slower, or without a way to the other ranks."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of, node_count, whole_number, world_size
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment, EnvPair

GATE = "nccl"

_TYPO = 0.9
# Lists of algorithms and of protocols, and what was measured slower than the default.
_LISTS = {"NCCL_ALGO": "tree", "NCCL_PROTO": "ll128"}
_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS")
_SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
# Bridges and cable ends between the host and its containers; no other host is behind them.
_HOST_ONLY = ("docker", "veth", "virbr", "br-", "cni", "podman")
_P2P_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "0", "1", "2", "3", "4", "5")


def check_nccl(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`nccl`: every setting reads, none is known to break or to be slow, and the ranks keep a way to talk."""
    findings = [finding for pair in deployment.env if pair.name.startswith("NCCL_") for finding in _reading(pair)]
    findings += _slower(deployment)
    findings += _ways_to_talk(deployment, facts)
    return findings + _interfaces(deployment, facts)


def _reading(pair: EnvPair) -> list[Finding]:
    """What NCCL makes of one of its variables: it never says that it cannot read one."""
    from shardwright.facts.nccl import KNOWN_NAMES
    from shardwright.gates.nccl_values import unread_part

    if pair.name not in KNOWN_NAMES:
        from difflib import get_close_matches

        near = get_close_matches(pair.name, KNOWN_NAMES, cutoff=_TYPO)
        text = f"{pair.name} is none of NCCL's variables ({pair.origin})"
        why = "NCCL passes over names that it does not know"
        return [Finding(GATE, "warn", text, why=why, fix=f"did you mean {near[0]}?")] if near else []
    value = pair.value.strip()
    part = unread_part(pair.name, pair.value) if pair.name in _LISTS else None
    if part is not None:
        text = f"{pair.name}={pair.value}: NCCL knows no {part!r} ({pair.origin})"
        why = "NCCL stops with 'Unrecognized element token'"
        return [Finding(GATE, "reject", text, why=why, fix=f"correct {pair.name}, or remove it")]
    number = whole_number(value.removeprefix("-"))
    switch = pair.name.endswith(("_DISABLE", "_ENABLE", "_AFFINITY"))
    level = pair.name == "NCCL_P2P_LEVEL"
    if value and ((switch and number is None) or (level and value.upper() not in _P2P_LEVELS)):
        text = f"{pair.name}={pair.value} does not read and counts as unset ({pair.origin})"
        fix = f'write {pair.name}: "1" or "0"' if switch else f"write one of {', '.join(_P2P_LEVELS[:6])}"
        return [Finding(GATE, "warn", text, why="NCCL reads numbers here, and passes over words", fix=fix)]
    return []


def _slower(deployment: Deployment) -> list[Finding]:
    from shardwright.gates.nccl_values import chosen_for_all_reduce

    findings = []
    for name, only in _LISTS.items():
        pair = env_of(deployment, name)
        if pair is not None and chosen_for_all_reduce(name, pair.value) == {only}:
            findings.append(_measured(pair))
    channels = [pair for name in _CHANNELS if (pair := env_of(deployment, name)) is not None]
    return findings + [_measured(pair) for pair in channels if pair.value.strip() == "1"]


def _measured(pair: EnvPair) -> Finding:
    return Finding(
        GATE,
        "info",
        f"{pair.name}={pair.value} was measured slower than the default",
        why="at TP=8 on 8x A100 the defaults (ring, LL) were best; 39 % of the time goes into collectives",
        fix=f"remove {pair.name} from env:",
    )


def _ways_to_talk(deployment: Deployment, facts: Facts) -> list[Finding]:
    if world_size(deployment) == 1:
        return []
    findings = []
    level = env_of(deployment, "NCCL_P2P_LEVEL")
    no_peers = _is_on(deployment, "NCCL_P2P_DISABLE") or (level is not None and level.value.upper() in ("LOC", "0"))
    if no_peers and _is_on(deployment, "NCCL_SHM_DISABLE"):
        text = "without peer access and with NCCL_SHM_DISABLE=1 the ranks of one host have only the network"
        findings.append(Finding(GATE, "warn", text, why="slower by far than either", fix="remove one of the two"))
    elif no_peers and facts.links in ("all", "pairs"):
        text = "the cards have NVLink, and NCCL may not use it: peer access is switched off"
        findings.append(Finding(GATE, "info", text, fix="remove NCCL_P2P_DISABLE and NCCL_P2P_LEVEL from env:"))
    protocol = env_of(deployment, "NCCL_PROTO")
    asked = protocol is not None and "ll128" in protocol.value.lower() and "^" not in protocol.value
    if asked and facts.links == "pcie":
        text = "NCCL_PROTO asks for LL128, and the cards are joined by PCIe"
        why = "LL128 needs stores of 128 bytes in one piece; forced where NCCL would not choose it, it can corrupt data"
        findings.append(Finding(GATE, "warn", text, why=why, fix="remove NCCL_PROTO from env:"))
    if node_count(deployment) > 1 and _is_on(deployment, "NCCL_IB_DISABLE"):
        text = "NCCL_IB_DISABLE=1 leaves TCP between the hosts"
        findings.append(Finding(GATE, "info", text, fix="remove it where the hosts have InfiniBand or RoCE"))
    return findings


def _is_on(deployment: Deployment, name: str) -> bool:
    pair = env_of(deployment, name)
    return pair is not None and pair.value.strip() == "1"


def _interfaces(deployment: Deployment, facts: Facts) -> list[Finding]:
    findings = []
    many = node_count(deployment) > 1
    for name in _SOCKETS:
        pair = env_of(deployment, name)
        if pair is None:
            continue
        marked = pair.value.startswith(("^", "="))
        if name == "GLOO_SOCKET_IFNAME" and marked:
            text = f"{name}={pair.value}: Gloo takes whole names only, without a mark before them ({pair.origin})"
            why = "it looks for an interface of that very name"
            findings.append(Finding(GATE, "reject", text, why=why, fix=f"name one{_have(facts)}"))
            continue
        findings += _interface(pair, _fitting(pair, deployment, facts), many, facts)
    if many and env_of(deployment, "NCCL_SOCKET_IFNAME") and not env_of(deployment, "GLOO_SOCKET_IFNAME"):
        text = "NCCL_SOCKET_IFNAME is set without GLOO_SOCKET_IFNAME"
        why = "the engine's CPU groups pick an interface by themselves and may pick another"
        findings.append(Finding(GATE, "warn", text, why=why, fix="set both to the same interface"))
    return findings


def _interface(pair: EnvPair, fitting: list[str], many: bool, facts: Facts) -> list[Finding]:
    if not facts.host.interfaces and (pair.value.startswith("^") or not fitting):
        return []
    if not fitting:
        text = f"{pair.name}={pair.value}: this host has no such interface ({pair.origin})"
        why = "the start hangs, or ends in 'no socket interface found'"
        return [Finding(GATE, "reject", text, why=why, fix=f"name one of the host's{_have(facts)}")]
    if many and all(_stays_here(name) for name in fitting):
        text = f"{pair.name}={pair.value} cannot reach the other nodes ({pair.origin})"
        return [Finding(GATE, "reject", text, fix=f"name the interface between the hosts{_have(facts)}")]
    return []


def _fitting(pair: EnvPair, deployment: Deployment, facts: Facts) -> list[str]:
    """The interfaces that a value means: NCCL takes names as prefixes, after `=` whole, after `^` all the others.

    Where nobody looked at the host, the names themselves.
    """
    names = [part for part in pair.value.lstrip("^=").split(",") if part]
    there = facts.host.interfaces
    if not there:
        return names
    bridged = deployment.container.network in (None, "bridge") and deployment.runtime == "docker"
    if bridged and node_count(deployment) == 1:
        # What Docker calls the container's own end of the bridge.
        there = (*there, "eth0")
    whole = pair.value.lstrip("^").startswith("=") or pair.name == "GLOO_SOCKET_IFNAME"
    fits = [name for name in there if any(name == part if whole else name.startswith(part) for part in names)]
    return [name for name in there if name not in fits] if pair.value.startswith("^") else fits


def _stays_here(interface: str) -> bool:
    return interface == "lo" or interface.startswith(_HOST_ONLY)


def _have(facts: Facts) -> str:
    others = [name for name in facts.host.interfaces if not _stays_here(name)]
    return f" (have {', '.join(others)})" if others else ""
