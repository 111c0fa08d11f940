"""Borders of what the host must have: memory, driver, disk."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deployed import deployed, fixes, said

from shardwright.facts.facts import Facts
from shardwright.facts.host import Host
from shardwright.facts.weights import LayerBytes, WeightFacts
from shardwright.gates.host import check_disk, check_driver, check_host_memory
from shardwright.layout.schema import Model


@pytest.mark.parametrize(
    ("available", "found"),
    [
        (None, "host-memory unknown: whether the host can hold 10 GiB of weights + 3 GiB of KV cache is not known"),
        (13.0, None),
        (
            12.9,
            "host-memory reject: 10 GiB of weights + 3 GiB of KV cache are offloaded to the host, "
            "which has 12.9 GiB available",
        ),
    ],
)
def test_what_is_offloaded_fits_up_to_the_last_gib(available: float | None, found: str | None) -> None:
    asked = deployed("--cpu-offload-gb 5", "--kv-offloading-size 3", tensor=2)
    assert said(check_host_memory, asked, Facts(host=Host(memory_gib=available))) == ([found] if found else [])


def test_offloading_counts_weights_per_rank_of_this_host() -> None:
    small = Facts(host=Host(memory_gib=9.5))
    two_hosts = deployed("--cpu-offload-gb 5", "--nnodes 2", tensor=4)
    assert "10 GiB of weights are" in said(check_host_memory, two_hosts, small)[0]
    assert fixes(check_host_memory, two_hosts, small) == ["lower cpu_offload_gb to 4 or the size of the cache there"]
    cache = deployed("--kv-offloading-size 10")
    assert "reject: 10 GiB of KV cache are" in said(check_host_memory, cache, small)[0]
    assert fixes(check_host_memory, cache, small) == ["lower cpu_offload_gb to 0 or the size of the cache there"]


@pytest.mark.parametrize("size", ["0", "-5", "some", ""])
def test_offloading_of_nothing_needs_no_host_memory(size: str) -> None:
    assert said(check_host_memory, deployed(f"--cpu-offload-gb {size}")) == []
    assert len(said(check_host_memory, deployed("--cpu-offload-gb 0.5"))) == 1


@pytest.mark.parametrize(
    ("config", "gib"),
    [
        ({"kv_connector_extra_config": {"cpu_bytes_to_use": 3 << 30}}, "3"),
        (
            {
                "kv_connector_extra_config": {
                    "connectors": [{"cpu_bytes_to_use": 1 << 30}, {"cpu_bytes_to_use": 1 << 30}]
                }
            },
            "2",
        ),
        ({"kv_connector": "LMCacheConnectorV1"}, "10"),
        ({"kv_connector": "NixlConnector"}, None),
        ({"kv_connector_extra_config": {"bytes": 3 << 30}}, None),
    ],
)
def test_a_connectors_cache_on_the_host_counts(config: dict[str, Any], gib: str | None) -> None:
    flag = "--kv-transfer-config " + json.dumps(config).replace(" ", "")
    asked = deployed(flag, tensor=2, env={"LMCACHE_MAX_LOCAL_CPU_SIZE": "5"})
    found = said(check_host_memory, asked, Facts(host=Host(memory_gib=1.0)))
    text = f"host-memory reject: {gib} GiB of KV cache are offloaded to the host, which has 1.0 GiB available"
    assert found == ([text] if gib else [])
    assert said(check_host_memory, asked, Facts(host=Host(memory_gib=10.0))) == []


def test_an_engine_on_cpus_takes_its_cache_from_the_host() -> None:
    asked = deployed(tensor=2, env={"VLLM_CPU_KVCACHE_SPACE": "5"}, engine={"platform": "cpu"})
    assert said(check_host_memory, asked, Facts(host=Host(memory_gib=10.0))) == []
    assert len(said(check_host_memory, asked, Facts(host=Host(memory_gib=9.9)))) == 1
    # Nobody looked at the host: then an engine that needs nothing but its own cache is not held up.
    assert said(check_host_memory, asked) == []
    on_cards = deployed(tensor=2, env={"VLLM_CPU_KVCACHE_SPACE": "5"})
    assert said(check_host_memory, on_cards, Facts(host=Host(memory_gib=1.0))) == []


OFFICIAL = "vllm/vllm-openai"


@pytest.mark.parametrize(
    ("image", "version", "driver", "found"),
    [
        (f"{OFFICIAL}:v0.30.0", "0.30.0", "580.65.06", None),
        (f"{OFFICIAL}:v0.30.0", "0.30.0", "579.9", "580, which CUDA 13 needs (the official image of 0.30.0)"),
        (f"{OFFICIAL}:v0.20.0", "0.20.0", "525.60", None),
        (f"{OFFICIAL}:v0.20.0", "0.20.0", "524", "525, which CUDA 12 needs (every engine image since 0.4)"),
        (f"{OFFICIAL}:v0.30.0-cu129", "0.30.0", "525", None),
        (f"{OFFICIAL}:v0.30.0-cu129", "0.30.0", "524", "525, which CUDA 12 needs (tag v0.30.0-cu129)"),
        ("org/x:1_cuda13.0", "0.20.0", "579", "580, which CUDA 13 needs (tag 1_cuda13.0)"),
        ("org/x:cu118", "0.20.0", "450", None),
        ("org/x:cu118", "0.20.0", "449", "450, which CUDA 11 needs (tag cu118)"),
        ("org/x:cu99", "0.20.0", "1", None),
        ("org/x:custom", "0.30.0", "525", None),
        ("org/x:cu130@sha256:0", "0.20.0", "579", "580, which CUDA 13 needs (tag cu130)"),
        (f"{OFFICIAL}:v0.28.0", "0.28.0", "579", "580, which CUDA 13 needs (the official image of 0.28.0)"),
        (f"{OFFICIAL}:v0.27.0", "0.27.0", "579", None),
        ("org/x:12", "0.30.0", "524", "525, which CUDA 12 needs (every engine image since 0.4)"),
        ("org/x@sha256:0", "0.30.0", "525", None),
        (f"{OFFICIAL}:v0.30.0", "0.30.0", None, None),
        (f"{OFFICIAL}:v0.30.0", "0.30.0", "new", None),
        (None, "0.30.0", "525", None),
    ],
)
def test_the_driver_is_new_enough_for_the_images_cuda(
    image: str | None, version: str, driver: str | None, found: str | None
) -> None:
    facts = Facts(host=Host(driver=driver))
    engine = {"image": image, "vllm": version}
    text = f"driver reject: the host's driver {driver} is older than {found}"
    assert said(check_driver, deployed(engine=engine), facts) == ([text] if found else [])
    assert said(check_driver, deployed(engine={**engine, "platform": "cpu"}), facts) == []
    assert said(check_driver, deployed(engine=engine, runtime="local"), facts) == []


@pytest.mark.parametrize(("value", "found"), [("1", 0), ("0", 1)])
def test_the_engines_compatibility_mode_runs_on_an_older_driver(value: str, found: int) -> None:
    asked = deployed(engine={"image": "org/x:cu130"}, env={"VLLM_ENABLE_CUDA_COMPATIBILITY": value})
    assert len(said(check_driver, asked, Facts(host=Host(driver="550.1")))) == found


@pytest.mark.parametrize(
    ("path", "free", "found"),
    [
        ("org/model", 2.0, None),
        ("org/model", 1.9, "reject: the weights of org/model are 2.0 GiB, and 1.9 GiB are free"),
        ("/models/m", 1.9, None),
        ("/models/m", 1.0, None),
        ("/models/m", 0.9, "warn: only 0.9 GiB are free where the project, the model or the images lie"),
        ("org/model", None, None),
    ],
)
def test_a_model_of_the_hub_finds_room_on_the_disk(path: str, free: float | None, found: str | None) -> None:
    weights = WeightFacts("c", (LayerBytes(1 << 30),), LayerBytes(), 1 << 30, 0, 0)
    asked = deployed(model=Model(path, None, None, None))
    facts = Facts(host=Host(disk_free_gib=free), weights=weights)
    assert said(check_disk, asked, facts) == ([f"disk {found}"] if found else [])
    assert said(check_disk, asked, Facts(host=Host(disk_free_gib=1.5))) == []
