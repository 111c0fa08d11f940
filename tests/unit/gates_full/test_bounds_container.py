"""Borders of what the container around the engine needs."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said, shipped

from shardwright.facts.facts import Facts
from shardwright.facts.host import Host
from shardwright.gates.container import (
    check_confinement,
    check_image_reference,
    check_port,
    check_restart_policy,
    check_shared_memory,
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


def test_a_waived_size_is_a_warning_that_names_the_waiver() -> None:
    (found,) = said(check_shared_memory, deployed(tensor=2, container=PRIVATE, waivers=("small-shm",)))
    assert found == "shared-memory warn: waived by small-shm: 2 ranks share Docker's default of 64 MB"
    assert "reject" in said(check_shared_memory, deployed(tensor=2, container=PRIVATE, waivers=("other",)))[0]


@pytest.mark.parametrize(("size", "small"), [(None, False), (7.9, True), (8.0, False), (9.0, False)])
def test_the_hosts_own_shared_memory_counts_with_ipc_host(size: float | None, small: bool) -> None:
    found = said(check_shared_memory, deployed(), Facts(host=Host(shm_gib=size)))
    text = "shared-memory warn: ipc: host gives the host's /dev/shm, which holds only 7.9 GiB"
    assert found == ([text] if small else [])


@pytest.mark.parametrize(
    ("image", "verdict"),
    [
        ("org/vllm:latest", "warn"),
        ("org/vllm", "warn"),
        ("org/vllm:nightly", "warn"),
        ("org/vllm:nightly-0a1b2c", "warn"),
        ("org/vllm:main", "warn"),
        ("org/vllm:dev", "warn"),
        ("org/vllm:edge", "warn"),
        ("org/vllm:devel", "info"),
        ("org/vllm:v0.30.0", "info"),
        ("host:5000/vllm:edge", "warn"),
        ("host:5000/vllm", "warn"),
        ("vllm:latest", "info"),
        ("vllm", "info"),
        ("org/vllm@sha256:" + "0" * 64, None),
        ("", None),
        (None, None),
    ],
)
def test_an_image_by_a_tag_that_moves_is_not_the_same_tomorrow(image: str | None, verdict: str | None) -> None:
    found = said(check_image_reference, deployed(engine={"image": image}))
    assert [text.split(":")[0] for text in found] == ([f"image-reference {verdict}"] if verdict else [])
    assert said(check_image_reference, deployed(engine={"image": image, "digest": "sha256:0"})) == []
    assert said(check_image_reference, deployed(engine={"image": image}, runtime="local")) == []


@pytest.mark.parametrize(("tag", "verdict"), [("latest", "reject"), ("v1", "info")])
def test_patches_are_made_for_one_state_of_an_image(tag: str, verdict: str) -> None:
    for name in ("vllm", "org/vllm"):
        (found,) = said(
            check_image_reference, deployed(engine={"image": f"{name}:{tag}"}, patches=shipped("pp-cpu-eager"))
        )
        assert found.startswith(f"image-reference {verdict}: the image {name}:{tag} ")


@pytest.mark.parametrize(
    ("restart", "status", "speaks"),
    [
        ("no", "testing", False),
        ("", "testing", False),
        ("on-failure:3", "testing", False),
        ("on-failure", "testing", True),
        ("always", "testing", True),
        ("always", "rejected", True),
        ("always", "ready", False),
    ],
)
def test_an_engine_nobody_saw_start_does_not_start_for_ever(restart: str, status: Any, speaks: bool) -> None:
    asked = deployed(container={"restart": restart}, status=status)
    expected = [f"restart-policy warn: restart: {restart} on a layout that is {status}"]
    assert said(check_restart_policy, asked) == (expected if speaks else [])
    assert said(check_restart_policy, deployed(container={"restart": restart}, runtime="local")) == []


@pytest.mark.parametrize(("network", "port"), [(None, 9000), ("bridge", 9000), ("host", 8000)])
def test_the_port_that_must_be_free_is_the_one_that_the_host_listens_on(network: str | None, port: int) -> None:
    asked = deployed(container={"network": network, "publish_port": 9000, "container_port": 8000})
    taken = Facts(host=Host(listening=(port,)))
    assert said(check_port, asked, taken) == [f"port reject: port {port} is in use on the host"]
    assert fixes(check_port, asked, taken) == [f"deploy status case; or PORT={port + 1}"]
    assert said(check_port, asked, Facts(host=Host(listening=(17_000 - port,)))) == []
    live = Facts(host=Host(listening=(port,), live=True))
    assert said(check_port, asked, live) == [f"port warn: port {port} is in use on the host"]


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
        ({"security_opt": ("seccomp=unconfined",)}, ENFORCING, ["warn: SELinux enforces"]),
        ({"privileged": True}, ENFORCING, ["info: container.privileged"]),
    ],
)
def test_confinement_is_named_where_it_is_left(
    container: dict[str, Any], facts: Facts | None, found: list[str]
) -> None:
    texts = said(check_confinement, deployed(container=container), facts)
    assert len(texts) == len(found)
    for text, start in zip(texts, found, strict=True):
        assert text.startswith(f"confinement {start}")


def test_selinux_hinders_containers_only() -> None:
    assert said(check_confinement, deployed(runtime="local"), ENFORCING) == []


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
