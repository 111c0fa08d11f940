"""Borders of what the container around the engine needs."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, mount, said
from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.facts.host import Host
from shardwright.facts.shape import ModelShape
from shardwright.gates.container import (
    check_confinement,
    check_port,
    check_restart_policy,
    check_shared_memory,
    check_ulimits,
    size_gib,
)

PRIVATE = {"ipc": "private"}


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("16g", 16.0),
        ("16gb", 16.0),
        ("16GiB", 16.0),
        (" 16 g ", 16.0),
        ("1t", 1024.0),
        ("512m", 0.5),
        ("1048576k", 1.0),
        ("1073741824", 1.0),
        ("1073741824b", 1.0),
        ("1.5g", 1.5),
        ("0g", 0.0),
        ("1.5.5g", None),
        ("1x", None),
        ("g", None),
        ("", None),
        (None, None),
        ("-1g", None),
        ("²g", None),
        ("many", None),
    ],
)
def test_sizes_read_as_docker_reads_them(text: str | None, gib: float | None) -> None:
    assert size_gib(text) == gib


@pytest.mark.parametrize(
    ("tensor", "container", "found"),
    [
        (1, PRIVATE, []),
        (2, PRIVATE, ["shared-memory reject: 2 ranks share Docker's default of 64 MB"]),
        (2, {**PRIVATE, "shm_size": "7.99g"}, ["shared-memory reject: 2 ranks share shm_size 7.99g"]),
        (2, {**PRIVATE, "shm_size": "8g"}, []),
        (2, {**PRIVATE, "shm_size": "16g"}, []),
        (2, {"ipc": "container:other"}, []),
        (2, {"ipc": "shareable"}, ["shared-memory reject: 2 ranks share Docker's default of 64 MB"]),
        (1, {**PRIVATE, "shm_size": "lots"}, ["shared-memory reject: container.shm_size 'lots' is not a size"]),
        (2, {"ipc": "host"}, []),
        (
            1,
            {"shm_size": "8g"},
            ["shared-memory info: ipc: host shares the host's /dev/shm, so shm_size has no effect"],
        ),
    ],
)
def test_shared_memory_by_ranks_and_size(tensor: int, container: dict[str, Any], found: list[str]) -> None:
    assert said(check_shared_memory, deployed(tensor=tensor, container=container)) == found
    assert said(check_shared_memory, deployed(tensor=tensor, container=container, runtime="local")) == []
    on_cpu = deployed(tensor=tensor, container=container, engine={"platform": "cpu"})
    assert said(check_shared_memory, on_cpu) == []


def test_ranks_of_other_hosts_share_no_memory() -> None:
    assert said(check_shared_memory, deployed("--nnodes 2", tensor=2, container=PRIVATE)) == []
    assert "2 ranks" in said(check_shared_memory, deployed("--nnodes 2", tensor=4, container=PRIVATE))[0]


def test_replicas_share_memory_where_they_share_experts() -> None:
    experts = Facts(shape=ModelShape("c", experts=64))
    replicas = deployed("--data-parallel-size 2", container=PRIVATE)
    assert "2 ranks" in said(check_shared_memory, replicas, experts)[0]
    assert said(check_shared_memory, replicas, Facts(shape=ModelShape("c"))) == []
    assert said(check_shared_memory, replicas) == []
    assert said(check_shared_memory, deployed(container=PRIVATE), experts) == []


def test_a_waived_size_is_a_warning_that_names_the_waiver() -> None:
    (found,) = said(check_shared_memory, deployed(tensor=2, container=PRIVATE, waivers=("small-shm",)))
    assert found == "shared-memory warn: waived by small-shm: 2 ranks share Docker's default of 64 MB"
    assert "reject" in said(check_shared_memory, deployed(tensor=2, container=PRIVATE, waivers=("other",)))[0]


@pytest.mark.parametrize(("size", "small"), [(None, False), (7.9, True), (8.0, False), (9.0, False)])
def test_the_hosts_own_shared_memory_counts_with_ipc_host(size: float | None, small: bool) -> None:
    facts = Facts(host=Host(shm_gib=size))
    text = "shared-memory warn: the ranks share the host's /dev/shm, which holds only 7.9 GiB"
    assert said(check_shared_memory, deployed(tensor=2), facts) == ([text] if small else [])
    assert said(check_shared_memory, deployed(), facts) == []


SHM = mount("/dev/shm", "/dev/shm", readonly=False)
NOTHING = "shared-memory reject: 2 ranks share no /dev/shm that they can write"


@pytest.mark.parametrize(
    ("tensor", "container", "mounts", "found"),
    [
        (2, {"ipc": "none", "shm_size": "64g"}, (), [NOTHING]),
        (1, {"ipc": "none"}, (), []),
        (2, PRIVATE, (SHM,), []),
        (2, PRIVATE, (mount("/dev/shm/", readonly=False),), []),
        (2, PRIVATE, (mount("/dev/shm", readonly=True),), [NOTHING]),
        (2, {**PRIVATE, "shm_size": "64g"}, (mount("/dev/shm", readonly=True),), [NOTHING]),
        (2, {"ipc": "container:x"}, (mount("/dev/shm", readonly=True),), [NOTHING]),
        (2, PRIVATE, (mount("/dev/shm/x", readonly=False),), ["shared-memory reject: 2 ranks share Docker's default"]),
        (
            2,
            {**PRIVATE, "shm_size": "8g"},
            (SHM,),
            ["shared-memory info: the mount on /dev/shm shares the host's /dev/shm, so shm_size has no effect"],
        ),
        (1, {"ipc": "hosts"}, (), ["shared-memory reject: container.ipc 'hosts' is no mode of Docker"]),
        (1, {"ipc": "hosts", "tool": "podman"}, (), []),
        (1, {"ipc": ""}, (), []),
        (1, {"ipc": "container:"}, (), ["shared-memory reject: container.ipc 'container:' is no mode of Docker"]),
    ],
)
def test_shared_memory_by_ipc_mode_and_mount(
    tensor: int, container: dict[str, Any], mounts: Any, found: list[str]
) -> None:
    texts = said(check_shared_memory, deployed(tensor=tensor, container=container, mounts=mounts))
    assert len(texts) == len(found)
    for text, start in zip(texts, found, strict=True):
        assert text.startswith(start)


def test_a_small_dev_shm_of_the_host_counts_where_it_is_mounted() -> None:
    facts = Facts(host=Host(shm_gib=2.0))
    mounted = deployed(tensor=2, container=PRIVATE, mounts=(SHM,))
    assert said(check_shared_memory, mounted, facts)[0].startswith("shared-memory warn: the ranks share the host's")


def test_an_ipc_mode_that_docker_lacks_is_answered_with_those_that_it_has() -> None:
    assert fixes(check_shared_memory, deployed(container={"ipc": "hosts"})) == [
        "write one of private, shareable, host, none"
    ]


LIMITS = (
    *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio"),
    *("rttime", "sigpending", "stack"),
)


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_of_docker_is_known(name: str) -> None:
    assert said(check_ulimits, deployed(container={"ulimits": ((name, "1"),)})) == []


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("memlock", "-1", None),
        ("stack", "67108864", None),
        ("nofile", "1024:4096", None),
        ("nofile", "4096:4096", None),
        ("nofile", "4096:-1", None),
        ("nofile", "-1:-1", None),
        ("nofile", "4097:4096", "the soft limit is above the hard one"),
        ("nofile", "-1:4096", "the soft limit is above the hard one"),
        ("memlock", "unlimited", "not a number, nor SOFT:HARD; -1 is unlimited"),
        ("memlock", "1:2:3", "not a number, nor SOFT:HARD; -1 is unlimited"),
        ("memlock", "1:x", "not a number, nor SOFT:HARD; -1 is unlimited"),
        ("memlok", "-1", "no such limit, did you mean memlock?"),
        ("zzz", "-1", "no such limit"),
    ],
)
def test_a_limit_is_one_that_docker_takes(name: str, value: str, problem: str | None) -> None:
    asked = {"ulimits": (("core", "0"), (name, value))}
    found = said(check_ulimits, deployed(container=asked))
    assert found == ([f"ulimits reject: container.ulimits {name}: {value}: {problem}"] if problem else [])
    assert said(check_ulimits, deployed(container=asked, runtime="local")) == []


@pytest.mark.parametrize(
    ("restart", "status", "speaks"),
    [
        ("no", "testing", False),
        ("", "testing", False),
        ("on-failure:3", "testing", False),
        ("on-failure", "testing", True),
        ("on-failure:0", "testing", True),
        ("on-failure:1", "testing", False),
        ("always", "testing", True),
        ("always", "rejected", True),
        ("always", "ready", False),
        ("unless-stopped", "ready", False),
    ],
)
def test_an_engine_nobody_saw_start_does_not_start_for_ever(restart: str, status: Any, speaks: bool) -> None:
    asked = deployed(container={"restart": restart}, status=status)
    expected = [f"restart-policy warn: restart: {restart} on a layout that is {status}"]
    assert said(check_restart_policy, asked) == (expected if speaks else [])
    assert said(check_restart_policy, deployed(container={"restart": restart}, runtime="local")) == []


@pytest.mark.parametrize("restart", ["unless_stopped", "never", "always:3", "no:", "on-failure:x", "on-failure:-1"])
def test_a_restart_policy_that_docker_lacks_is_refused(restart: str) -> None:
    for status in ("testing", "ready"):
        asked = deployed(container={"restart": restart}, status=status)
        assert said(check_restart_policy, asked) == [
            f"restart-policy reject: restart: {restart} is no policy of Docker"
        ]


@pytest.mark.parametrize(("network", "port"), [(None, 9000), ("bridge", 9000), ("host", 8000)])
def test_the_port_that_must_be_free_is_the_one_that_the_host_listens_on(network: str | None, port: int) -> None:
    asked = deployed(container={"network": network, "publish_port": 9000, "container_port": 8000})
    taken = Facts(host=Host(listening=(port,)))
    assert said(check_port, asked, taken)[:1] == [f"port reject: port {port} is in use on the host"]
    assert fixes(check_port, asked, taken)[:1] == [f"deploy status case; or PORT={port + 1}"]
    other = said(check_port, asked, Facts(host=Host(listening=(17_000 - port,))))
    assert [text for text in other if "in use" in text] == []
    live = Facts(host=Host(listening=(port,), live=True))
    assert said(check_port, asked, live)[:1] == [f"port warn: port {port} is in use on the host"]


@pytest.mark.parametrize(
    ("network", "outer", "runtime", "speaks"),
    [
        ("host", 9000, "docker", True),
        ("host", 8000, "docker", False),
        (None, 9000, "docker", False),
        ("host", 9000, "local", False),
    ],
)
def test_the_hosts_network_publishes_no_other_port(network: str | None, outer: int, runtime: Any, speaks: bool) -> None:
    ports = {"network": network, "publish_port": outer, "container_port": 8000}
    asked = deployed(container=ports, runtime=runtime)
    text = "port reject: network: host publishes nothing: the engine listens on 8000, and publish says 9000"
    assert said(check_port, asked) == [text] * speaks
    assert fixes(check_port, asked) == ['write publish: "127.0.0.1:9000:9000"'] * speaks
    assert len(said(check_port, deployed("--nnodes 2", container=ports, runtime=runtime))) == speaks


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--nnodes 2",), True),
        (("--nnodes 2", "--node-rank 0"), True),
        (("--nnodes 2", "--node-rank 1"), False),
        (("--nnodes 2", "--master-port 29502"), False),
        (("--nnodes 1",), False),
        ((), False),
    ],
)
def test_the_first_of_several_hosts_needs_the_port_where_it_waits(flags: tuple[str, ...], found: bool) -> None:
    taken = Facts(host=Host(listening=(29501,)))
    assert said(check_port, deployed(*flags), taken) == ["port reject: port 29501 is in use on the host"] * found
    assert fixes(check_port, deployed(*flags), taken) == ["write serve: {master_port: 29502}"] * found


ENFORCING = Facts(host=Host(selinux="enforcing"))
PERMISSIVE = Facts(host=Host(selinux="permissive"))


@pytest.mark.parametrize(
    ("container", "facts", "found"),
    [
        ({}, None, []),
        ({"privileged": True}, None, ["info: container.privileged"]),
        ({"tool": "podman"}, None, ["info: podman compose"]),
        ({"tool": "podman", "ipc": "private"}, None, []),
        ({"tool": "podman", "shm_size": "8g"}, None, []),
        ({"devices": ("nvidia.com/gpu=0",)}, None, ["reject: cards are passed twice"]),
        ({"devices": ("nvidia.com/gpu=0",), "gpus": None}, None, []),
        (
            {},
            Facts(host=Host(runtimes=("runc", "crun"))),
            ["reject: the host's Docker has no NVIDIA runtime (has runc, crun)"],
        ),
        ({}, Facts(host=Host(runtimes=("runc", "nvidia"))), []),
        ({"gpus": None}, Facts(host=Host(runtimes=("runc",))), []),
        ({}, ENFORCING, ["warn: SELinux enforces"]),
        ({}, PERMISSIVE, []),
        ({"security_opt": ("label=disable",)}, ENFORCING, []),
        ({"security_opt": ("label:disable",)}, ENFORCING, []),
        ({"security_opt": ("label=type:spc_t",)}, ENFORCING, []),
        ({"security_opt": ("seccomp=unconfined",)}, ENFORCING, ["warn: SELinux enforces"]),
        ({"privileged": True}, ENFORCING, ["info: container.privileged"]),
    ],
)
def test_confinement_is_named_where_it_is_left(
    container: dict[str, Any], facts: Facts | None, found: list[str]
) -> None:
    texts = said(check_confinement, deployed(container=container, mounts=(mount("/data"),)), facts)
    assert len(texts) == len(found)
    for text, start in zip(texts, found, strict=True):
        assert text.startswith(f"confinement {start}")


def test_selinux_hinders_bind_mounts_of_containers_only() -> None:
    bound, volume = mount("/data"), replace(mount("/data"), volume=True)
    assert said(check_confinement, deployed(runtime="local", mounts=(bound,)), ENFORCING) == []
    assert said(check_confinement, deployed(), ENFORCING) == []
    assert said(check_confinement, deployed(mounts=(volume,)), ENFORCING) == []
    assert len(said(check_confinement, deployed(mounts=(volume, bound)), ENFORCING)) == 1


@pytest.mark.parametrize(
    ("entrypoint", "secrets", "runtime", "speaks"),
    [
        ((), ("TOKEN",), "docker", True),
        (("vllm", "serve"), ("TOKEN",), "docker", False),
        (None, ("TOKEN",), "docker", False),
        ((), (), "docker", False),
        ((), ("TOKEN",), "local", False),
    ],
)
def test_secrets_need_an_entry_point_to_go_on_to(
    entrypoint: tuple[str, ...] | None, secrets: tuple[str, ...], runtime: Any, speaks: bool
) -> None:
    asked = deployed(engine={"entrypoint": entrypoint}, secrets=secrets, runtime=runtime)
    found = said(check_confinement, asked)
    assert [text[:40] for text in found] == (["confinement reject: secrets need an entr"] if speaks else [])
