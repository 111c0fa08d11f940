"""The container around the engine: shared memory, image reference, restarts, port."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import node_count, world_size
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

SHM_WAIVER = "small-shm"

_LEAST_SHM_GIB = 8.0
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOVING_TAGS = ("latest", "nightly", "main", "dev", "edge")


def check_shared_memory(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`shared-memory`: several ranks in one container have more than Docker's 64 MB of /dev/shm."""
    container = deployment.container
    if deployment.runtime != "docker" or deployment.platform == "cpu":
        return []
    size = size_gib(container.shm_size)
    if container.shm_size is not None and size is None:
        text = f"container.shm_size {container.shm_size!r} is not a size"
        return [Finding("shared-memory", "reject", text, fix="write shm_size: 16g")]
    if container.ipc == "host":
        if size is not None:
            text = "ipc: host shares the host's /dev/shm, so shm_size has no effect"
            return [Finding("shared-memory", "info", text)]
        return _host_shm(facts)
    ranks = world_size(deployment) // node_count(deployment)
    if ranks <= 1 or container.ipc.startswith("container:") or (size is not None and size >= _LEAST_SHM_GIB):
        return []
    given = f"shm_size {container.shm_size}" if size is not None else "Docker's default of 64 MB"
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


def _host_shm(facts: Facts) -> list[Finding]:
    size = facts.host.shm_gib
    if size is None or size >= _LEAST_SHM_GIB:
        return []
    text = f"ipc: host gives the host's /dev/shm, which holds only {size:.1f} GiB"
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


def check_image_reference(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`image-reference`: the image is one that will still be the same tomorrow."""
    engine = deployment.engine
    if deployment.runtime != "docker" or engine.digest is not None or not engine.image or "@sha256:" in engine.image:
        return []
    name, colon, tag = engine.image.rpartition("/")[2].partition(":")
    tag = tag if colon else "latest"
    published = name != engine.image.partition(":")[0]
    moving = next((word for word in _MOVING_TAGS if tag == word or tag.startswith(f"{word}-")), None)
    fix = f"docker image inspect --format '{{{{.RepoDigests}}}}' {engine.image}, and write it as engine.digest"
    if moving and deployment.patches:
        text = f"the image {engine.image} moves, and patches are made for one state of it"
        why = "the next pull brings other files, and the overlay would cover them with old ones"
        return [Finding("image-reference", "reject", text, why=why, fix=fix)]
    if moving and published:
        text = f"the image {engine.image} is named by a tag that moves or is purged"
        return [Finding("image-reference", "warn", text, why="tomorrow it is another image or none", fix=fix)]
    text = f"the image {engine.image} is named by tag, without a digest"
    return [Finding("image-reference", "info", text, fix=fix)]


def check_restart_policy(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`restart-policy`: an engine that was never seen to start does not start for ever."""
    restart = deployment.container.restart
    bounded = restart.startswith("on-failure:")
    if deployment.runtime != "docker" or restart in ("no", "") or bounded or deployment.status == "ready":
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
    port = container.container_port if container.network == "host" else container.publish_port
    if port not in facts.host.listening:
        return []
    text = f"port {port} is in use on the host"
    why = "the engine loads its weights first and then ends in 'address already in use'"
    fix = f"deploy status {deployment.name}; or PORT={port + 1}"
    return [Finding("port", "warn" if facts.host.live else "reject", text, why=why, fix=fix)]


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
    if enforcing and not container.privileged and "label=disable" not in container.security_opt:
        text = "SELinux enforces on the host, and bind mounts are not relabelled"
        why = "the container gets 'permission denied' on the model and on overlays"
        findings.append(
            Finding(
                "confinement", "warn", text, why=why, fix="write security_opt: [label=disable], or relabel the folders"
            )
        )
    return findings
