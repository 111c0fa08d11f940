"""The container around the engine: shared memory, limits, restarts, port, confinement."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import local_ranks, master_port, node_count, number_of, whole_number, world_size
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

SHM_WAIVER = "small-shm"

_LEAST_SHM_GIB = 8.0
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_IPC_MODES = ("", "private", "shareable", "host", "none")
_RESTARTS = ("", "no", "always", "unless-stopped", "on-failure")
# What `docker run --ulimit` knows (go-units); "as" is not among them.
_ULIMITS = (
    *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio"),
    *("rttime", "sigpending", "stack"),
)


def check_shared_memory(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`shared-memory`: several ranks in one container have more than Docker's 64 MB of /dev/shm."""
    container = deployment.container
    if deployment.runtime != "docker" or deployment.platform == "cpu":
        return []
    size = size_gib(container.shm_size)
    if container.shm_size is not None and size is None:
        text = f"container.shm_size {container.shm_size!r} is not a size"
        return [Finding("shared-memory", "reject", text, fix="write shm_size: 16g")]
    shared = container.ipc.startswith("container:") and container.ipc != "container:"
    if container.tool == "docker" and container.ipc not in _IPC_MODES and not shared:
        text = f"container.ipc {container.ipc!r} is no mode of Docker"
        fix = f"write one of {', '.join(mode for mode in _IPC_MODES if mode)}"
        return [Finding("shared-memory", "reject", text, fix=fix)]
    ranks = _talking_ranks(deployment, facts)
    mounted = next((mount for mount in deployment.mounts if mount.target.rstrip("/") == "/dev/shm"), None)
    if container.ipc == "host" or (mounted is not None and not mounted.readonly):
        if size is not None:
            whose = "ipc: host" if mounted is None else "the mount on /dev/shm"
            text = f"{whose} shares the host's /dev/shm, so shm_size has no effect"
            return [Finding("shared-memory", "info", text)]
        return _host_shm(facts) if ranks > 1 else []
    has_own = mounted is None and container.ipc != "none"
    if ranks <= 1 or (has_own and (shared or (size is not None and size >= _LEAST_SHM_GIB))):
        return []
    given = f"shm_size {container.shm_size}" if size is not None else "Docker's default of 64 MB"
    if not has_own:
        given = "no /dev/shm that they can write"
    finding = Finding(
        "shared-memory",
        "reject",
        f"{ranks} ranks share {given}",
        why="NCCL and the engine's queues end in 'Error while creating shared memory segment', often late in the start",
        fix=f"write container: {{shm_size: 16g}} (at least {_LEAST_SHM_GIB:g}g), or ipc: host",
    )
    if SHM_WAIVER in deployment.waivers:
        return [Finding(finding.gate, "warn", f"waived by {SHM_WAIVER}: {finding.message}", finding.why, finding.fix)]
    return [finding]


def _talking_ranks(deployment: Deployment, facts: Facts) -> int:
    """Ranks of one host that exchange tensors. Replicas do so for experts only, vLLM v1/engine/core.py."""
    experts = facts.shape is not None and facts.shape.experts
    return local_ranks(deployment) if experts else world_size(deployment) // node_count(deployment)


def _host_shm(facts: Facts) -> list[Finding]:
    size = facts.host.shm_gib
    if size is None or size >= _LEAST_SHM_GIB:
        return []
    text = f"the ranks share the host's /dev/shm, which holds only {size:.1f} GiB"
    return [Finding("shared-memory", "warn", text, fix="write ipc: private and shm_size: 16g")]


def size_gib(text: str | None) -> float | None:
    """`16g`, `16gb`, `64m`, `1073741824` in GiB; None where it is absent or does not read."""
    if text is None:
        return None
    plain = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = plain[-1:] if plain[-1:] in _UNITS else ""
    number = plain.removesuffix(unit).strip()
    if not number.replace(".", "", 1).isdigit() or not number.isascii():
        return None
    return float(number) * _UNITS[unit] / (1 << 30)


def check_restart_policy(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`restart-policy`: an engine that was never seen to start does not start for ever."""
    restart = deployment.container.restart
    policy, colon, times = restart.partition(":")
    if deployment.runtime != "docker":
        return []
    counted = policy == "on-failure" and whole_number(times) is not None
    if policy not in _RESTARTS or (colon and not counted):
        text = f"restart: {restart} is no policy of Docker"
        return [Finding("restart-policy", "reject", text, fix='write restart: "no", on-failure:3 or unless-stopped')]
    # Docker takes a count of 0 as no limit.
    bounded = policy in ("no", "") or (counted and whole_number(times) != 0)
    if bounded or deployment.status == "ready":
        return []
    return [
        Finding(
            "restart-policy",
            "warn",
            f"restart: {restart} on a layout that is {deployment.status}",
            why="a wrong setting then restarts without end; one host needed a physical reset after 35 restarts",
            fix='write restart: "no" or on-failure:3 until the layout is ready',
        )
    ]


def check_port(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`port`: the host port is free. On this very machine its holder may be this layout's own server."""
    container = deployment.container
    wanted = [container.container_port if container.network == "host" else container.publish_port]
    if node_count(deployment) > 1 and number_of(deployment, "--node-rank", 0) == 0:
        wanted.append(master_port(deployment))
    taken = [_taken(deployment, port, facts) for port in wanted if port in facts.host.listening]
    if deployment.runtime != "docker" or container.network != "host" or wanted[0] == container.publish_port:
        return taken
    inner, outer = container.container_port, container.publish_port
    text = f"network: host publishes nothing: the engine listens on {inner}, and publish says {outer}"
    why = "deploy wait, and everybody else, would ask where nobody answers"
    return [*taken, Finding("port", "reject", text, why=why, fix=f'write publish: "127.0.0.1:{outer}:{outer}"')]


def _taken(deployment: Deployment, port: int, facts: Facts) -> Finding:
    text = f"port {port} is in use on the host"
    why = "the engine loads its weights first and then ends in 'address already in use'"
    master = port == master_port(deployment)
    fix = (
        f"write serve: {{master_port: {port + 1}}}"
        if master
        else f"deploy status {deployment.name}; or PORT={port + 1}"
    )
    return Finding("port", "warn" if facts.host.live else "reject", text, why=why, fix=fix)


def check_ulimits(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`ulimits`: Docker takes each limit as it is written."""
    if deployment.runtime != "docker":
        return []
    findings = []
    for name, value in deployment.container.ulimits:
        problem = _ulimit_problem(name, value)
        if problem:
            text = f"container.ulimits {name}: {value}: {problem}"
            findings.append(Finding("ulimits", "reject", text, fix='write ulimits: {memlock: "-1", stack: "67108864"}'))
    return findings


def _ulimit_problem(name: str, value: str) -> str:
    if name not in _ULIMITS:
        from difflib import get_close_matches

        near = get_close_matches(name, _ULIMITS)
        return "no such limit" + (f", did you mean {near[0]}?" if near else "")
    limits = [-1 if part == "-1" else whole_number(part) for part in value.split(":")]
    numbers = [limit for limit in limits if limit is not None]
    if len(limits) > 2 or len(numbers) < len(limits):
        return "not a number, nor SOFT:HARD; -1 is unlimited"
    soft, hard = numbers[0], numbers[-1]
    # go-units compares no hard limit of -1.
    return "the soft limit is above the hard one" if hard != -1 and (soft > hard or soft == -1) else ""


def check_confinement(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`confinement`: what the container may do beyond the default is named."""
    container = deployment.container
    findings = []
    if container.privileged:
        text = "container.privileged gives the engine every device of the host"
        findings.append(Finding("confinement", "info", text, fix="name what it needs in devices: and ulimits:"))
    if container.tool == "podman" and container.ipc == "host" and container.shm_size is None:
        text = "podman compose files drop ipc: host without a word; this command line keeps it"
        findings.append(Finding("confinement", "info", text, fix="set shm_size too where the layout is exported"))
    if container.devices and container.gpus:
        text = "cards are passed twice: container.gpus and container.devices"
        findings.append(Finding("confinement", "reject", text, fix="keep gpus for docker, devices for CDI names"))
    if deployment.secrets and deployment.engine.entrypoint == () and deployment.runtime == "docker":
        text = "secrets need an entry point that is named, and engine.entrypoint is []"
        why = "a shell reads the secrets first and then has to know what to start"
        fix = "docker image inspect --format '{{.Config.Entrypoint}}' IMAGE, and write it as engine.entrypoint"
        findings.append(Finding("confinement", "reject", text, why=why, fix=fix))
    runtimes = facts.host.runtimes
    if container.gpus and runtimes and "nvidia" not in runtimes:
        text = f"the host's Docker has no NVIDIA runtime (has {', '.join(runtimes)})"
        findings.append(Finding("confinement", "reject", text, fix="nvidia-ctk runtime configure --runtime=docker"))
    enforcing = facts.host.selinux == "enforcing" and deployment.runtime == "docker"
    labelled = any(option.startswith(("label=", "label:")) for option in container.security_opt)
    bound = any(not mount.volume for mount in deployment.mounts)
    if enforcing and bound and not container.privileged and not labelled:
        text = "SELinux enforces on the host, and bind mounts are not relabelled"
        why = "the container gets 'permission denied' on the model and on overlays"
        findings.append(
            Finding(
                "confinement", "warn", text, why=why, fix="write security_opt: [label=disable], or relabel the folders"
            )
        )
    return findings
