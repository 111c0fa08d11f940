"""Variables of the engine's environment: unknown to this version, known to be slow, or known to break."""

from __future__ import annotations

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of, node_count, whole_number, world_size
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment, EnvPair

_PREFIX = "VLLM_"
# Near enough to a known name to be a slip of the pen rather than a name of somebody else's.
_TYPO = 0.9
_NEAR = 0.75
_SLOWER = (
    ("NCCL_ALGO", "allreduce:tree"),
    ("NCCL_PROTO", "LL128"),
    ("NCCL_MIN_NCHANNELS", "1"),
    ("NCCL_MAX_NCHANNELS", "1"),
)
_TOO_LITTLE_TO_TALK = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def check_engine_variables(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`engine-env`: every VLLM_* variable is read by this version, by the image, or by a patch."""
    own = [pair for pair in deployment.env if pair.name.startswith(_PREFIX) and pair.origin.kind != "rule"]
    declared = frozenset(deployment.engine.provides.envs)
    asked = [pair for pair in own if pair.name not in declared]
    if not asked:
        return []
    if facts.engine is None or facts.engine.table is None:
        names = ", ".join(pair.name for pair in asked)
        text = f"the variables of vLLM {deployment.engine.vllm} are not known here, so unchecked: {names}"
        return [Finding("engine-env", "unknown", text, fix="deploy check --in-image reads them from the engine")]
    engine, table = facts.engine, facts.engine.table
    known = frozenset(table.envs)
    return [_unread(pair, engine, table) for pair in asked if pair.name not in known]


def _unread(pair: EnvPair, engine: EngineFacts, table: EngineTable) -> Finding:
    from difflib import SequenceMatcher, get_close_matches

    text = f"{pair.name} is not read by vLLM {table.vllm} ({pair.origin})"
    why = "the engine only logs 'Unknown vLLM environment variable detected' and runs without the setting"
    retired = engine.retired.envs.get(pair.name)
    if retired is not None:
        return Finding("engine-env", "reject", text, why=why, fix=retired)
    having = [other.vllm for other in engine.others if pair.name in other.envs]
    near = get_close_matches(pair.name, table.envs, cutoff=_NEAR)
    meant = f"did you mean {near[0]}?" if near else f"remove {pair.name} from env:"
    if having:
        return Finding("engine-env", "reject", f"{text}; {' and '.join(having)} did", why=why, fix=meant)
    if near and SequenceMatcher(None, pair.name, near[0]).ratio() >= _TYPO:
        return Finding("engine-env", "reject", text, why=why, fix=meant)
    return Finding(
        "engine-env",
        "warn",
        f"{text}, and neither the image nor a patch declares it",
        why=why,
        fix=f"{meant} Where the image's own code reads it: engine.provides: {{envs: [{pair.name}]}}",
    )


def check_nccl(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`nccl`: settings that were measured slower, and such as leave the ranks no way to talk."""
    findings = [
        Finding(
            "nccl",
            "info",
            f"{name}={value} was measured slower than the default",
            why="at TP=8 on 8x A100 the defaults (ring, LL) were best; 39 % of the time goes into collectives",
            fix=f"remove {name} from env:",
        )
        for name, value in _SLOWER
        if (pair := env_of(deployment, name)) is not None and pair.value.strip().lower() == value.lower()
    ]
    if world_size(deployment) > 1 and all(_is_on(deployment, name) for name in _TOO_LITTLE_TO_TALK):
        text = "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 leave the ranks of one host only the network"
        findings.append(Finding("nccl", "warn", text, why="slower by far than either", fix="remove one of the two"))
    return findings + _socket_interface(deployment, facts)


def _is_on(deployment: Deployment, name: str) -> bool:
    pair = env_of(deployment, name)
    return pair is not None and pair.value.strip() == "1"


def _socket_interface(deployment: Deployment, facts: Facts) -> list[Finding]:
    findings = []
    many = node_count(deployment) > 1
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        pair = env_of(deployment, name)
        if pair is None:
            continue
        wanted = [part for part in pair.value.lstrip("=").split(",") if part]
        if many and wanted and all(part == "lo" for part in wanted):
            text = f"{name}={pair.value} cannot reach the other nodes ({pair.origin})"
            findings.append(Finding("nccl", "reject", text, fix=f"name the interface between the hosts{_have(facts)}"))
        elif facts.host.interfaces and not pair.value.startswith("^") and not _there(wanted, pair.value, facts):
            text = f"{name}={pair.value}: this host has no such interface ({pair.origin})"
            why = "the start hangs, or ends in 'no socket interface found'"
            findings.append(Finding("nccl", "reject", text, why=why, fix=f"name one of the host's{_have(facts)}"))
    if many and env_of(deployment, "NCCL_SOCKET_IFNAME") and not env_of(deployment, "GLOO_SOCKET_IFNAME"):
        text = "NCCL_SOCKET_IFNAME is set without GLOO_SOCKET_IFNAME"
        why = "the engine's CPU groups pick an interface by themselves and may pick another"
        findings.append(Finding("nccl", "warn", text, why=why, fix="set both to the same interface"))
    return findings


def _there(wanted: list[str], value: str, facts: Facts) -> bool:
    """Whether an interface fits; without a leading `=` NCCL takes the names as prefixes."""
    exact = value.startswith("=")
    return any(name == part if exact else name.startswith(part) for part in wanted for name in facts.host.interfaces)


def _have(facts: Facts) -> str:
    others = [name for name in facts.host.interfaces if name != "lo"]
    return f" (have {', '.join(others)})" if others else ""


def check_device_selection(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`device-selection`: the devices that are chosen are enough, distinct, and chosen in one place."""
    from shardwright.gates.options import value_of

    chosen = {
        name: [part.strip() for part in pair.value.split(",") if part.strip()]
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
        if (pair := env_of(deployment, name)) is not None
    }
    flag = value_of(deployment, "--device-ids")
    if flag is not None:
        chosen["--device-ids"] = [part.strip() for part in flag.split(",") if part.strip()]
    inner = [name for name in chosen if name != "NVIDIA_VISIBLE_DEVICES"]
    findings = []
    if len(inner) > 1:
        text = f"devices are chosen twice: {' and '.join(inner)}"
        why = "the second choice counts within the first, not on the host"
        findings.append(Finding("device-selection", "reject", text, why=why, fix=f"keep {inner[0]} only"))
    ranks = world_size(deployment) // node_count(deployment)
    for name, devices in chosen.items():
        if name == "NVIDIA_VISIBLE_DEVICES" and devices in (["all"], ["void"], ["none"]):
            continue
        findings += _selection_findings(name, devices, ranks, deployment.platform)
    return findings + _container_contradiction(deployment, chosen)


def _selection_findings(name: str, devices: list[str], ranks: int, platform: str) -> list[Finding]:
    if len(set(devices)) < len(devices):
        text = f"{name} names a device twice: {','.join(devices)}"
        return [
            Finding("device-selection", "reject", text, why="two ranks cannot share one card", fix=f"correct {name}")
        ]
    if platform != "cpu" and len(devices) < ranks:
        text = f"{name} gives {len(devices)} devices, but {ranks} ranks run on this host"
        return [Finding("device-selection", "reject", text, fix=f"name {ranks} devices, or lower TP or PP")]
    return []


def _container_contradiction(deployment: Deployment, chosen: dict[str, list[str]]) -> list[Finding]:
    """A container numbers its cards from 0, whatever their numbers on the host."""
    if deployment.runtime != "docker" or deployment.container.gpus is None:
        return []
    gpus = deployment.container.gpus.strip("'\"")
    passed = len(gpus.split(",")) if gpus.startswith("device=") else whole_number(gpus)
    if passed is None:
        return []
    for name in ("CUDA_VISIBLE_DEVICES", "--device-ids"):
        numbers = [whole_number(part) for part in chosen.get(name, [])]
        beyond = [number for number in numbers if number is not None and number >= passed]
        if beyond:
            text = f"{name} names device {beyond[0]}, but container.gpus passes {passed}, numbered from 0"
            return [Finding("device-selection", "reject", text, fix=f"renumber {name} from 0, or pass all cards")]
    ranks = world_size(deployment) // node_count(deployment)
    if passed < ranks:
        text = f"container.gpus passes {passed} cards, but {ranks} ranks run on this host"
        return [Finding("device-selection", "reject", text, fix=f"pass {ranks} cards, or lower TP or PP")]
    return []
