"""What the host must have: memory for what is offloaded to it, a driver for the image, room for what is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.facts.facts import Facts
from shardwright.facts.versions import version_in
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of, json_of, local_ranks, value_of, whole_number
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

_GIB = 1 << 30
# The oldest driver branch of each major CUDA release (NVIDIA's table of minor version compatibility).
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
_OFFICIAL = "vllm/vllm-openai"
# vLLM envs.py VLLM_MAIN_CUDA_VERSION; older releases were built for 12.
_CUDA_13 = ">=0.28"
_COMPATIBLE_ENV = "VLLM_ENABLE_CUDA_COMPATIBILITY"
# Where less is left, logs and compiled kernels soon find no room.
_LEAST_DISK_GIB = 1.0


def check_host_memory(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`host-memory`: what is offloaded to the host fits there."""
    available, ranks = facts.host.memory_gib, local_ranks(deployment)
    weights = _number(value_of(deployment, "--cpu-offload-gb")) * ranks
    cache = _cache_gib(deployment, ranks)
    if deployment.platform == "cpu" and available is not None:
        cache += _env_number(deployment, "VLLM_CPU_KVCACHE_SPACE") * ranks
    wanted = weights + cache
    if not wanted:
        return []
    parts = " + ".join(
        text
        for amount, text in ((weights, f"{weights:g} GiB of weights"), (cache, f"{cache:g} GiB of KV cache"))
        if amount
    )
    if available is None:
        return [Finding("host-memory", "unknown", f"whether the host can hold {parts} is not known")]
    if wanted <= available:
        return []
    return [
        Finding(
            "host-memory",
            "reject",
            f"{parts} are offloaded to the host, which has {available:.1f} GiB available",
            why="cpu_offload_gb counts for each rank; the host swaps or kills the engine while it loads",
            fix=f"lower cpu_offload_gb to {max(0, int((available - cache) / ranks))} or the size of the cache there",
        )
    ]


def _cache_gib(deployment: Deployment, ranks: int) -> float:
    """GiB of KV cache on the host, by the engine itself or by a connector; a connector's size is that of all ranks."""
    transfer = json_of(deployment, "--kv-transfer-config")
    cache = _number(value_of(deployment, "--kv-offloading-size"))
    cache += sum(_number(str(size)) for size in _entries(transfer, "cpu_bytes_to_use")) / _GIB
    if any("LMCache" in str(name) for name in _entries(transfer, "kv_connector")):
        cache += _env_number(deployment, "LMCACHE_MAX_LOCAL_CPU_SIZE") * ranks
    return cache


def _entries(value: Any, key: str) -> Iterator[Any]:
    """What stands under a key, at every depth."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from _entries(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _entries(inner, key)


def _env_number(deployment: Deployment, name: str) -> float:
    pair = env_of(deployment, name)
    return _number(pair.value if pair else None)


def _number(text: str | None) -> float:
    try:
        return max(0.0, float(text)) if text else 0.0
    except ValueError:
        return 0.0


def check_driver(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`driver`: the host's driver is new enough for the CUDA of the image."""
    driver, image = facts.host.driver, deployment.engine.image
    if driver is None or not image or deployment.platform != "cuda" or deployment.runtime != "docker":
        return []
    branch = whole_number(driver.partition(".")[0])
    cuda, source = _cuda_of(image, deployment.engine.vllm)
    least = _LEAST_DRIVER.get(cuda)
    compatible = env_of(deployment, _COMPATIBLE_ENV)
    if branch is None or least is None or branch >= least or (compatible is not None and compatible.value == "1"):
        return []
    return [
        Finding(
            "driver",
            "reject",
            f"the host's driver {driver} is older than {least}, which CUDA {cuda} needs ({source})",
            why="the container does not start ('unsatisfied condition: cuda'), or the engine sees no card",
            fix=f"a driver from {least} on, or an image of an older CUDA; data-centre cards may run with "
            f'env: {{{_COMPATIBLE_ENV}: "1"}}',
        )
    ]


def _cuda_of(image: str, version: str) -> tuple[int, str]:
    """The major CUDA release of the image, and who says so: its tag, else the engine's releases."""
    name, _, tag = image.partition("@")[0].rpartition(":")
    for word in tag.replace("_", "-").split("-"):
        major = whole_number(word.removeprefix("cuda").removeprefix("cu")[:2])
        if word.startswith("cu") and major is not None:
            return major, f"tag {tag}"
    if name == _OFFICIAL and version_in(version, _CUDA_13):
        return 13, f"the official image of {version}"
    return 12, "every engine image since 0.4"


def check_disk(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`disk`: the weights of a model of the hub find room; a disk that is all but full is named."""
    free = facts.host.disk_free_gib
    if free is None:
        return []
    fetched = None if deployment.model.path.startswith("/") else facts.weights
    if fetched is not None and fetched.total > free * _GIB:
        size = fetched.total / _GIB
        text = f"the weights of {deployment.model.path} are {size:.1f} GiB, and {free:.1f} GiB are free"
        why = "the hub's files are fetched at the first start, which then ends in 'No space left on device'"
        return [Finding("disk", "reject", text, why=why, fix="free space, or mount a cache folder of a larger disk")]
    if free < _LEAST_DISK_GIB:
        text = f"only {free:.1f} GiB are free where the project, the model or the images lie"
        return [Finding("disk", "warn", text, why="logs and compiled kernels find no room", fix="free space")]
    return []
