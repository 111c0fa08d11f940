"""The options of a container in one spelling, whether they come from a command line or from `docker inspect`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardwright.runtime.description import value_digest

DEFAULTS: Mapping[str, str] = {
    "ipc": "private",
    "network": "bridge",
    "restart": "no",
    "shm_size": "64 MiB",
    "stop_timeout_s": "10",
}
"""What Docker takes where nobody asks; an option that is not here is then left out."""


def gpus(value: str | None) -> str:
    """The value of --gpus: `all`, a number, or `device=0,1`; driver and capabilities do not count."""
    if value is None:
        return ""
    (fields,) = csv.reader([value])
    for field in fields:
        key, equals, content = field.partition("=")
        if key == "device":
            return f"device={content}"
        if not equals or key == "count":
            return content if equals else field
    return ""


def network(value: str | None) -> str:
    return "" if value in (None, "default") else str(value)


def published(bindings: Iterable[tuple[str, str, str]]) -> str:
    """Bindings of host address, host port and container port with its protocol."""
    return ", ".join(sorted(f"{host or '0.0.0.0'}:{port} -> {inner}" for host, port, inner in bindings))


def device(value: str) -> str:
    """One --device with all that Docker adds: the path inside and the permissions. CDI names stay as they are."""
    if "=" in value:
        return value
    outer, *rest = value.split(":")
    inner = rest.pop(0) if rest and rest[0].startswith("/") else outer
    return f"{outer}:{inner}:{rest[0] if rest else 'rwm'}"


def ulimit(value: str) -> str:
    """One --ulimit as name=soft:hard."""
    name, _, limits = value.partition("=")
    soft, colon, hard = limits.partition(":")
    return f"{name}={soft}:{hard if colon else soft}"


def security(values: Iterable[str]) -> str:
    """Security options; of a profile only that there is one, since Docker keeps its text in place of its path."""
    found = []
    for value in values:
        key, mark, content = value.replace(":", "=", 1).partition("=") if "=" not in value else value.partition("=")
        if key == "seccomp" and content not in ("unconfined", "builtin"):
            content = "a profile"
        found.append("no-new-privileges" if key == "no-new-privileges" and content != "false" else key + mark + content)
    return " ".join(sorted(found))


def size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):g} MiB"


def health(check: Any) -> str:
    """A health check without the words of its command, which may hold a key."""
    if not isinstance(check, Mapping) or not check.get("Test"):
        return ""
    times = [f"{check.get(key, 0) / 1e9:g}" for key in ("Interval", "Timeout", "StartPeriod")]
    command = value_digest(" ".join(check["Test"]))
    return f"{command} every {times[0]} s, for {times[1]} s, {check.get('Retries', 0)} times, after {times[2]} s"


def inspected_options(attrs: Mapping[str, Any]) -> dict[str, str]:
    """The options of a container from its inspection; what is empty or Docker's own is left out."""
    host, config = attrs["HostConfig"], attrs["Config"]
    restart = host.get("RestartPolicy") or {}
    tries = restart.get("MaximumRetryCount") or 0
    found = {
        "ipc": host.get("IpcMode"),
        "network": network(host.get("NetworkMode")),
        "shm_size": size(int(host["ShmSize"])) if host.get("ShmSize") else "",
        "restart": f"{restart.get('Name') or 'no'}{f':{tries}' if tries else ''}",
        "stop_timeout_s": str(config.get("StopTimeout") or (0 if config.get("StopTimeout") == 0 else "")),
        "publish": published(_bindings(host.get("PortBindings") or {})),
        "gpus": " ".join(_requested(host.get("DeviceRequests") or (), cdi=False)),
        "devices": " ".join(sorted((*_devices(host), *_requested(host.get("DeviceRequests") or (), cdi=True)))),
        "ulimits": " ".join(sorted(f"{one['Name']}={one['Soft']}:{one['Hard']}" for one in host.get("Ulimits") or ())),
        "security_opt": security(host.get("SecurityOpt") or ()),
        "privileged": "yes" if host.get("Privileged") else "",
        "healthcheck": health(config.get("Healthcheck")),
        "user": config.get("User"),
        "pid": host.get("PidMode"),
        "cap_add": " ".join(sorted(host.get("CapAdd") or ())),
        "cap_drop": " ".join(sorted(host.get("CapDrop") or ())),
        "memory": size(int(host["Memory"])) if host.get("Memory") else "",
        "cpus": f"{host['NanoCpus'] / 1e9:g}" if host.get("NanoCpus") else "",
        "cpuset": host.get("CpusetCpus"),
        "read_only": "yes" if host.get("ReadonlyRootfs") else "",
    }
    return {**DEFAULTS, **{key: str(value) for key, value in found.items() if value}}


def _bindings(ports: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    for inner, bindings in ports.items():
        for binding in bindings or ():
            yield str(binding.get("HostIp") or ""), str(binding.get("HostPort") or ""), str(inner)


def _requested(requests: Sequence[Mapping[str, Any]], *, cdi: bool) -> Iterable[str]:
    for request in requests:
        ids = request.get("DeviceIDs") or ()
        if (request.get("Driver") == "cdi") != cdi:
            continue
        if cdi:
            yield from map(str, ids)
        elif ids:
            yield f"device={','.join(map(str, ids))}"
        else:
            yield "all" if request.get("Count") == -1 else str(request.get("Count"))


def _devices(host: Mapping[str, Any]) -> Iterable[str]:
    for one in host.get("Devices") or ():
        yield f"{one['PathOnHost']}:{one['PathInContainer']}:{one['CgroupPermissions']}"
