"""What earlier starts left behind: compile caches of another topology, and the log of a failed start."""

from __future__ import annotations

from shardwright.facts.engine_tables import release
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

_CACHE_ENV = ("TORCHINDUCTOR_CACHE_DIR", "DG_JIT_CACHE_DIR", "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "CUDA_CACHE_PATH")
# For images whose user has another home.
_CACHE_WORDS = (
    "torch_compile_cache",
    "torch_aot_compile",
    "/.cache/vllm",
    "/.cache/flashinfer",
    "/.triton",
    "deep_gemm",
)

_NEEDED = (
    r"max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the available "
    r"KV cache memory \((?P<available>[\d.]+) GiB\)(?:.*?estimated maximum model length is (?P<estimate>\d+))?"
)
_FREE = r"Free memory on device \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than"
_ALL_REDUCE = r"custom_all_reduce\.cuh:\d+ 'invalid argument'"
_RAY = r"Version mismatch: The cluster was started with:\s*Ray: (\S+)[\s\S]*?This process[\s\S]*?Ray: (\S+)"


def check_compile_cache(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`compile-cache`: a cache that outlives the container was made by this topology, engine and patches."""
    topology = f"tp{deployment.parallel.tensor}-pp{deployment.parallel.pipeline}"
    findings = []
    for path, made_for in facts.host.caches:
        foreign = _foreign(deployment, made_for)
        if foreign:
            findings.append(
                Finding(
                    "compile-cache",
                    "reject",
                    f"the compile cache {path} was made by {made_for}, this is {foreign}",
                    why="just-in-time kernels are not keyed by topology; foreign ones crash or compute wrongly",
                    fix=f"remove it, or mount one folder per topology, e.g. {path}-{topology}",
                )
            )
    places = _cache_places(deployment)
    kept = [mount for mount in deployment.mounts if not mount.readonly and _keeps_cache(mount.target, places)]
    off = env_of(deployment, "VLLM_DISABLE_COMPILE_CACHE")
    unused = off is not None and off.value == "1"
    if kept and deployment.patches and not unused and not any(topology in mount.source for mount in kept):
        text = f"{kept[0].target} outlives the container, and the layout has patches"
        why = "a patch that changes shapes, loaders or partitions stands in no compile key, so stale code is taken"
        fix = f"name the folder after the topology and the patches, e.g. {kept[0].source}-{topology}"
        findings.append(Finding("compile-cache", "warn", text, why=why, fix=fix))
    return findings


def _foreign(deployment: Deployment, made_for: str) -> str:
    """What this deployment is where a cache was made for something else; "" where the two agree.

    A cache is named as `tp4-pp2`, and may name its engine too: `tp4-pp2-0.30.0`.
    """
    import re

    here = {"tp": deployment.parallel.tensor, "pp": deployment.parallel.pipeline}
    sizes = {name: int(size) for name, size in re.findall(r"(tp|pp)[=_]?([0-9]+)", made_for.lower())}
    version = re.search(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?", made_for)
    topology = f"tp{here['tp']}-pp{here['pp']}"
    if not sizes or here != {**here, **sizes}:
        return topology
    engine = release(deployment.engine.vllm)
    return "" if version is None or engine is None or release(version[0]) == engine else f"{topology} on {engine}"


def _cache_places(deployment: Deployment) -> tuple[str, ...]:
    """Where the engine and its compilers keep what they compiled, inside the container."""
    env = {pair.name: pair.value for pair in deployment.env}
    home = env.get("HOME", "/root")
    cache = env.get("XDG_CACHE_HOME", f"{home}/.cache")
    root = env.get("VLLM_CACHE_ROOT", f"{cache}/vllm")
    return (
        home + root[1:] if root.startswith("~") else root,
        env.get("TRITON_CACHE_DIR", f"{home}/.triton"),
        env.get("FLASHINFER_WORKSPACE_BASE", home) + "/.cache/flashinfer",
        *(env[name] for name in _CACHE_ENV if name in env),
    )


def _keeps_cache(target: str, places: tuple[str, ...]) -> bool:
    """Whether a mount holds one of the places, lies in one, or is called like one."""
    folder = target.rstrip("/") + "/"
    inside = any(f"{place}/".startswith(folder) or folder.startswith(f"{place}/") for place in places)
    return inside or any(word in target for word in _CACHE_WORDS)


def check_earlier_log(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`earlier-log`: the log of an earlier start of this layout shows no death that a new start would repeat."""
    if not facts.log:
        return []
    import re

    found = re.search(_NEEDED, facts.log, re.DOTALL)
    if found:
        estimate = found["estimate"]
        text = f"max_model_len {found['length']} needs {found['needed']} GiB of KV cache, of {found['available']} GiB"
        fix = f"MAX_MODEL_LEN={estimate}" if estimate else "lower MAX_MODEL_LEN; how far: deploy plan"
        return [_died(text, "one request of full length does not fit", fix)]
    free = re.search(_FREE, facts.log)
    if free:
        text = f"only {free['free']} of {free['total']} GiB were free on a card"
        return [_died(text, "another process held the card", "nvidia-smi names the holder")]
    if re.search(_ALL_REDUCE, facts.log):
        text = "custom all-reduce ended in 'invalid argument'"
        return [_died(text, "cards without full NVLink", "write serve: {disable_custom_all_reduce: true}")]
    ray = re.search(_RAY, facts.log)
    if ray:
        text = f"Ray {ray[1]} started the cluster, a node has Ray {ray[2]}"
        return [_died(text, "nodes run different images", "use one image digest on all nodes")]
    return []


def _died(message: str, why: str, fix: str) -> Finding:
    return Finding("earlier-log", "reject", f"the earlier start died: {message}", why=why, fix=fix, evidence="log")
