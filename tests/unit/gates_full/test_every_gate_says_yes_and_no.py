"""Every gate has a situation in which it speaks, and one beside it in which it keeps still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardwright.gates.assess import GATES

Ask = Callable[..., list[Any]]
PACKAGE = "/usr/local/lib/python3.12/dist-packages/vllm"
SECRET = "hf_" + "A1b2C3d4E5f6G7h8I9j0K1"
CARDS = [{"cc": "9.0", "mem_gib": 80.0, "free_gib": 79.0, "count": 8}]
OLD = [{"cc": "7.5", "mem_gib": 15.0}]
GLM = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 78,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "num_attention_heads": 64,
}
GQA = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000}
MOE = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "moe_intermediate_size": 768}
HYBRID = {"num_hidden_layers": 8, "full_attention_interval": 4}


def tensor(size: int) -> dict[str, Any]:
    return {"parallel": {"tensor": size}}


def serve(**flags: Any) -> dict[str, Any]:
    return {"serve": flags}


def env(**pairs: str) -> dict[str, Any]:
    return {"env": pairs}


def mount(target: str, **rest: Any) -> dict[str, Any]:
    return {"container": {"mounts": [{"source": "/srv/x", "target": target, **rest}]}}


def nodes(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {"nodes": [{"rank": 0, **first}, {"rank": 1, **second}]}


RAY_LOG = (
    "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.43.0\n    Python: 3.12\n"
    "This process on node was started with:\n    Ray: 2.44.1"
)
ALL_CARDS = {"container": {"gpus": "all"}}
TWO_NODES = {"parallel": {"tensor": 2}, "serve": {"nnodes": 2, "master_addr": "192.0.2.1"}}
NINE = {"vllm": "0.29.0"}

# gate, layout, facts, verdict (None: silent)
SITUATIONS: list[tuple[str, dict[str, Any], dict[str, Any], str | None]] = [
    # flags
    ("engine-flags", serve(max_modle_len=8), {}, "reject"),
    ("model-settings", serve(load_format="dummy"), {}, "warn"),
    ("model-settings", serve(load_format="auto"), {}, None),
    ("kv-transfer", serve(kv_transfer_config={"kv_connector": "NixlConnector"}), {}, "reject"),
    ("kv-transfer", serve(kv_transfer_config={"kv_connector": "NixlConnector", "kv_role": "kv_both"}), {}, None),
    ("front-end", serve(enable_auto_tool_choice=True), {}, "reject"),
    ("front-end", serve(enable_auto_tool_choice=True, tool_call_parser="glm47"), {}, None),
    ("engine-flags", serve(max_model_len=8), {}, None),
    ("engine-flags", serve(max_model=8), {}, "warn"),
    ("engine-flags", serve(max=8), {}, "reject"),
    ("engine-flags", serve(tensor_parallel=8), {}, "reject"),
    ("engine-flags", {"serve": {"device_memory_utilization": 0.9}, "engine": {"vllm": "0.33.0"}}, {}, None),
    ("engine-flags", serve(device_memory_utilization=0.9), {}, "reject"),
    (
        "engine-flags",
        {"serve": {"gpu_memory_utilization": 0.9, "device_memory_utilization": 0.9}, "engine": {"vllm": "0.33.0"}},
        {},
        "reject",
    ),
    ("engine-flags", serve(dtype="float12"), {}, "reject"),
    ("engine-flags", serve(dtype="float16"), {}, None),
    ("engine-flags", serve(max_num_seqs="many"), {}, "reject"),
    ("engine-flags", serve(max_num_seqs=8), {}, None),
    ("engine-flags", serve(max_model_len="auto"), {}, None),
    ("engine-flags", serve(max_num_batched_tokens="8k"), {}, None),
    ("engine-flags", serve(max_num_batched_tokens="8q"), {}, "reject"),
    ("engine-flags", serve(gpu_memory_utilization="most"), {}, "reject"),
    ("engine-flags", serve(enforce_eager="yes"), {}, "reject"),
    ("engine-flags", serve(enforce_eager=False), {}, None),
    ("engine-flags", serve(headless=False), {}, "reject"),
    ("engine-flags", serve(max_model_len=True), {}, "reject"),
    ("engine-flags", serve(moe_backend="flashinfer-cutlass"), {}, None),
    ("engine-flags", {"serve": {"eplb_config.window_size": 5}}, {}, None),
    ("engine-flags", {"serve": {"max_model_len.x": 5}}, {}, "reject"),
    ("engine-flags", serve(eplb_config="{"), {}, "reject"),
    ("engine-flags", {"serve": {"max_num_seqs": 8}, "engine": NINE}, {}, "unknown"),
    ("engine-flags", {"engine": NINE}, {}, None),
    ("engine-flags", serve(kv_transfer_config="[1]"), {}, "reject"),
    ("engine-flags", serve(kv_transfer_config={"kv_role": "kv_both"}), {}, None),
    ("engine-flags", serve(cudagraph_capture_sizes=[1, 2]), {}, None),
    ("engine-flags", serve(cudagraph_capture_sizes=["one"]), {}, "reject"),
    # variables
    ("engine-env", env(VLLM_USE_V1="1"), {}, "reject"),
    ("engine-env", env(VLLM_LOGGING_LEVL="DEBUG"), {}, "reject"),
    ("engine-env", env(VLLM_LOGGING_LEVEL="DEBUG"), {}, None),
    ("engine-env", env(VLLM_OF_OUR_WRAPPER="1"), {}, "warn"),
    (
        "engine-env",
        {"env": {"VLLM_OF_OUR_WRAPPER": "1"}, "engine": {"provides": {"envs": ["VLLM_OF_OUR_WRAPPER"]}}},
        {},
        None,
    ),
    ("engine-env", {"env": {"VLLM_LOGGING_LEVEL": "DEBUG"}, "engine": NINE}, {}, "unknown"),
    ("engine-env", env(OTHER="1"), {}, None),
    ("nccl", env(NCCL_ALGO="allreduce:tree"), {}, "info"),
    ("nccl", env(NCCL_PROTO="LL128"), {}, "info"),
    ("nccl", env(NCCL_PROTO="LL,LL128,Simple"), {}, None),
    ("nccl", env(NCCL_MAX_NCHANNELS="1"), {}, "info"),
    ("nccl", env(NCCL_MAX_NCHANNELS="16"), {}, None),
    ("nccl", {**TWO_NODES, **env(NCCL_SOCKET_IFNAME="eth0")}, {}, "warn"),
    (
        "nccl",
        {**TWO_NODES, **env(NCCL_SOCKET_IFNAME="eth0", GLOO_SOCKET_IFNAME="eth0")},
        {"host": {"interfaces": ["eth0"]}},
        None,
    ),
    ("nccl", {**TWO_NODES, **env(NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")}, {}, "reject"),
    ("nccl", env(NCCL_SOCKET_IFNAME="^docker"), {"host": {"interfaces": ["eth0"]}}, None),
    ("nccl", {**tensor(2), **env(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")}, {}, "warn"),
    ("nccl", env(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1"), {}, None),
    ("device-selection", {**tensor(4), **env(CUDA_VISIBLE_DEVICES="0,1")}, {}, "reject"),
    ("device-selection", {**tensor(2), **env(CUDA_VISIBLE_DEVICES="1,0"), **ALL_CARDS}, {}, None),
    ("device-selection", {**tensor(2), **env(CUDA_VISIBLE_DEVICES="0,0")}, {}, "reject"),
    ("device-selection", {**tensor(2), **env(NVIDIA_VISIBLE_DEVICES="all")}, {}, None),
    ("device-selection", {**env(CUDA_VISIBLE_DEVICES="4"), "container": {"gpus": "device=4"}}, {}, "reject"),
    ("device-selection", {**env(CUDA_VISIBLE_DEVICES="0"), "container": {"gpus": "device=4"}}, {}, None),
    ("device-selection", {**env(CUDA_VISIBLE_DEVICES="0"), **serve(device_ids="0")}, {}, "reject"),
    ("device-selection", {**tensor(4), "container": {"gpus": "2"}}, {}, "reject"),
    # parallelism
    ("tensor-parallel", tensor(3), {"model": GQA}, "reject"),
    ("tensor-parallel", tensor(8), {"model": GQA}, None),
    ("tensor-parallel", tensor(16), {"model": GQA}, None),
    ("tensor-parallel", tensor(4), {"model": {"num_attention_heads": 12, "num_key_value_heads": 6}}, "reject"),
    ("tensor-parallel", tensor(6), {"model": {"num_attention_heads": 12, "vocab_size": 129280}}, "reject"),
    ("tensor-parallel", tensor(3), {"model": {"num_attention_heads": 12, "vocab_size": 129216}}, None),
    ("tensor-parallel", tensor(3), {"model": {"intermediate_size": 4096}}, "reject"),
    ("tensor-parallel", tensor(3), {"model": {"intermediate_size": 4098}}, None),
    (
        "tensor-parallel",
        tensor(2),
        {"model": {**MOE, "quantization_config": {"quant_method": "mxfp4"}, "moe_intermediate_size": 96}},
        "reject",
    ),
    (
        "tensor-parallel",
        tensor(3),
        {"model": {**MOE, "quantization_config": {"quant_method": "mxfp4"}, "moe_intermediate_size": 96}},
        None,
    ),
    ("expert-parallel", serve(enable_expert_parallel=True), {"model": GQA}, "reject"),
    ("expert-parallel", serve(enable_expert_parallel=True), {"model": MOE}, "info"),
    (
        "expert-parallel",
        {**tensor(2), **serve(enable_expert_parallel=True, all2all_backend="deepep_low_latency")},
        {"model": MOE},
        None,
    ),
    (
        "expert-parallel",
        {**tensor(3), **serve(enable_expert_parallel=True, enable_eplb=True)},
        {"model": MOE},
        "reject",
    ),
    (
        "expert-parallel",
        {**tensor(3), **serve(enable_expert_parallel=True, all2all_backend="deepep_low_latency")},
        {"model": MOE},
        "info",
    ),
    ("context-parallel", {**tensor(8), **serve(decode_context_parallel_size=3)}, {}, "reject"),
    ("context-parallel", {**tensor(8), **serve(decode_context_parallel_size=4)}, {"model": GLM}, None),
    (
        "context-parallel",
        {**tensor(16), **serve(decode_context_parallel_size=2)},
        {"model": {**GQA, "num_attention_heads": 48, "num_key_value_heads": 16}},
        "reject",
    ),
    (
        "context-parallel",
        {**tensor(8), **serve(decode_context_parallel_size=2)},
        {"model": {"num_attention_heads": 12, "num_key_value_heads": 4}},
        "reject",
    ),
    ("context-parallel", serve(prefill_context_parallel_size=2), {"model": GLM}, "info"),
    (
        "context-parallel",
        {**serve(prefill_context_parallel_size=2), "speculative": {"method": "ngram"}},
        {"model": GLM},
        "reject",
    ),
    ("hybrid-stages", {"parallel": {"pipeline": 4}}, {"model": HYBRID}, "reject"),
    ("hybrid-stages", {"parallel": {"pipeline": 2}}, {"model": HYBRID}, None),
    ("capacity-flags", serve(num_gpu_blocks_override=1000), {}, "info"),
    ("capacity-flags", serve(max_num_seqs=8), {}, None),
    ("world-size", tensor(16), {"gpus": CARDS}, "reject"),
    ("world-size", tensor(8), {"gpus": CARDS}, None),
    ("world-size", {**tensor(16), **serve(distributed_executor_backend="ray")}, {"gpus": CARDS}, None),
    ("world-size", {**tensor(4), **serve(data_parallel_size=4)}, {"gpus": CARDS}, "reject"),
    ("world-size", {**tensor(3), **serve(nnodes=2, master_addr="192.0.2.1")}, {}, "reject"),
    ("world-size", {**tensor(2), **serve(nnodes=2, node_rank=2, master_addr="192.0.2.1")}, {}, "reject"),
    ("master-address", {**tensor(2), **serve(nnodes=2)}, {}, "reject"),
    ("master-address", {**tensor(2), **serve(nnodes=2, master_addr="127.0.0.1")}, {}, "reject"),
    ("master-address", TWO_NODES, {}, None),
    (
        "master-address",
        {**TWO_NODES, "nodes": [{"rank": 0, "address": "192.0.2.9"}, {"rank": 1, "address": "192.0.2.2"}]},
        {},
        "reject",
    ),
    ("nodes-agree", TWO_NODES, nodes({"env": {"A": "1"}}, {"env": {"A": "2"}}), "reject"),
    ("nodes-agree", TWO_NODES, nodes({"env": {"VLLM_HOST_IP": "1"}}, {"env": {"VLLM_HOST_IP": "2"}}), None),
    ("nodes-agree", TWO_NODES, nodes({"image": "a", "address": "x"}, {"image": "a", "address": "y"}), None),
    ("nodes-agree", {"nodes": [{"rank": 0, "address": "a"}, {"rank": 0, "address": "b"}]}, {}, "reject"),
    # attention and cards
    ("attention-backend", serve(attention_backend="TRITON_MLA_SPARSE"), {}, "reject"),
    (
        "attention-backend",
        {
            **serve(attention_backend="TRITON_MLA_SPARSE"),
            "engine": {"provides": {"attention_backends": ["TRITON_MLA_SPARSE"]}},
        },
        {},
        None,
    ),
    ("attention-backend", {}, {"model": GLM, "gpus": CARDS}, None),
    ("attention-backend", {}, {"model": GLM, "gpus": OLD}, "reject"),
    ("attention-backend", {}, {"model": GLM}, "unknown"),
    ("attention-backend", serve(attention_backend="FLASHINFER_MLA_SPARSE"), {"model": GLM, "gpus": CARDS}, "reject"),
    ("attention-backend", serve(kv_cache_dtype="fp8_ds_mla"), {"model": GLM, "gpus": CARDS}, None),
    (
        "attention-backend",
        {**serve(kv_cache_dtype="fp8_ds_mla", attention_backend="FLASH_ATTN_MLA_SPARSE")},
        {"model": GLM, "gpus": CARDS},
        "reject",
    ),
    ("attention-backend", serve(kv_cache_dtype="fp8_ds_mla"), {"model": GQA}, "reject"),
    ("attention-backend", serve(block_size=48), {"model": GLM, "gpus": CARDS}, "reject"),
    ("indexer-weights", serve(hf_overrides={"index_topk_freq": 1}), {"model": GLM}, "unknown"),
    (
        "indexer-weights",
        serve(hf_overrides={"index_topk_freq": 1}),
        {"model": GLM, "checkpoint": {"tensors": ["model.layers.0.self_attn.indexer.wk"]}},
        "reject",
    ),
    (
        "indexer-weights",
        serve(hf_overrides={"index_topk_freq": 1}),
        {"model": GLM, "checkpoint": {"tensors": [f"model.layers.{n}.self_attn.indexer.wk" for n in range(78)]}},
        None,
    ),
    (
        "indexer-weights",
        serve(hf_overrides={"index_topk_freq": 4}),
        {"model": GLM, "checkpoint": {"tensors": [f"model.layers.{n}.self_attn.indexer.wk" for n in range(78)]}},
        "warn",
    ),
    ("indexer-weights", {}, {"model": GLM}, None),
    ("card-capability", serve(dtype="bfloat16"), {"gpus": OLD}, "reject"),
    ("card-capability", serve(dtype="bfloat16"), {"gpus": CARDS}, None),
    (
        "free-memory",
        serve(gpu_memory_utilization=0.9),
        {"gpus": [{"cc": "9.0", "mem_gib": 80, "free_gib": 71.9}]},
        "reject",
    ),
    (
        "free-memory",
        serve(gpu_memory_utilization=0.9),
        {"gpus": [{"cc": "9.0", "mem_gib": 80, "free_gib": 72.1}]},
        None,
    ),
    ("free-memory", {}, {"gpus": [{"cc": "9.0", "mem_gib": 80, "free_gib": 60}]}, "reject"),
    ("free-memory", serve(gpu_memory_utilization=0.5), {"gpus": [{"cc": "9.0", "mem_gib": 80, "free_gib": 40}]}, None),
    ("uneven-cards", tensor(2), {"gpus": [{"cc": "8.9", "mem_gib": 24}, {"cc": "8.9", "mem_gib": 16}]}, "info"),
    ("uneven-cards", tensor(2), {"gpus": CARDS}, None),
    ("host-memory", {**tensor(2), **serve(cpu_offload_gb=40)}, {"host": {"memory_gib": 64}}, "reject"),
    ("host-memory", {**tensor(2), **serve(cpu_offload_gb=40)}, {"host": {"memory_gib": 128}}, None),
    ("host-memory", serve(cpu_offload_gb=40), {}, "unknown"),
    ("all-reduce-topology", tensor(2), {"links": "pcie"}, "warn"),
    ("all-reduce-topology", {**tensor(2), **serve(disable_custom_all_reduce=True)}, {"links": "pcie"}, None),
    ("all-reduce-topology", tensor(2), {"links": "all"}, None),
    ("all-reduce-topology", tensor(3), {}, "info"),
    ("all-reduce-topology", tensor(4), {"links": "pairs"}, "info"),
    # runner
    ("model-runner", {"speculative": {"method": "ngram"}}, {}, "warn"),
    ("model-runner", {"speculative": {"method": "ngram"}, "v2_runner": "0"}, {}, None),
    ("model-runner", {"speculative": {"method": "ngram"}, "v2_runner": "1"}, {}, "reject"),
    ("model-runner", {"speculative": {"method": "mtp"}, "v2_runner": "1"}, {}, None),
    ("model-runner", {"speculative": {"method": "dspark"}, "v2_runner": "0"}, {}, "reject"),
    ("model-runner", {**serve(prefill_context_parallel_size=2), "v2_runner": "0"}, {}, "reject"),
    ("model-runner", {"engine": {"platform": "cpu"}, "v2_runner": "1"}, {}, "reject"),
    # container
    ("shared-memory", {**tensor(2), "container": {"ipc": "private"}}, {}, "reject"),
    ("shared-memory", {**tensor(2), "container": {"ipc": "private"}, "allow": ["small-shm"]}, {}, "warn"),
    ("shared-memory", {**tensor(2), "container": {"ipc": "private", "shm_size": "8g"}}, {}, None),
    ("shared-memory", {**tensor(2), "container": {"ipc": "private", "shm_size": "7.9g"}}, {}, "reject"),
    ("shared-memory", {**tensor(2), "container": {"ipc": "private", "shm_size": "lots"}}, {}, "reject"),
    ("shared-memory", {"container": {"ipc": "private"}}, {}, None),
    ("shared-memory", {"container": {"shm_size": "8g"}}, {}, "info"),
    ("shared-memory", tensor(2), {"host": {"shm_gib": 1.0}}, "warn"),
    ("image-reference", {"engine": {"image": "vllm/vllm-openai:latest"}}, {}, "warn"),
    ("image-reference", {"engine": {"image": "vllm/vllm-openai"}}, {}, "warn"),
    ("image-reference", {"engine": {"image": "vllm/vllm-openai:v0.30.0"}}, {}, "info"),
    ("image-reference", {"engine": {"image": "vllm/vllm-openai:latest", "digest": "sha256:" + "0" * 64}}, {}, None),
    ("image-reference", {"engine": {"image": "host:5000/x:nightly"}, "patches": ["pp-cpu-eager"]}, {}, "reject"),
    ("restart-policy", {"container": {"restart": "always"}}, {}, "warn"),
    ("restart-policy", {"container": {"restart": "always"}, "status": "ready"}, {}, None),
    ("restart-policy", {"container": {"restart": "on-failure:3"}}, {}, None),
    ("port", {}, {"host": {"listening": [8000]}}, "reject"),
    ("port", {}, {"host": {"listening": [8001]}}, None),
    (
        "port",
        {"container": {"network": "host", "publish": "127.0.0.1:9000:8000"}},
        {"host": {"listening": [8000]}},
        "reject",
    ),
    ("confinement", {"container": {"privileged": True}}, {}, "info"),
    ("confinement", {"container": {"gpus": "all", "devices": ["nvidia.com/gpu=all"]}}, {}, "reject"),
    ("confinement", {"container": {"gpus": "all"}}, {"host": {"runtimes": ["runc"]}}, "reject"),
    ("confinement", {"container": {"gpus": "all"}}, {"host": {"runtimes": ["runc", "nvidia"]}}, None),
    ("confinement", {}, {"host": {"selinux": "enforcing"}}, "warn"),
    ("confinement", {"container": {"security_opt": ["label=disable"]}}, {"host": {"selinux": "enforcing"}}, None),
    ("confinement", {"secrets": ["HF_TOKEN"], "engine": {"entrypoint": []}}, {}, "reject"),
    ("confinement", {"secrets": ["HF_TOKEN"]}, {}, None),
    # mounts
    ("mounts", mount("/templates"), {}, None),
    ("mounts", mount("/usr/local/lib"), {}, "reject"),
    ("mounts", mount(PACKAGE), {}, "reject"),
    ("mounts", mount(f"{PACKAGE}/envs.py", readonly=True), {}, "info"),
    ("mounts", mount(f"{PACKAGE}/envs.py"), {}, "warn"),
    ("mounts", mount(f"{PACKAGE}/envs.py", readonly=False), {}, "reject"),
    ("mounts", mount("/opt/venv/lib/python3.12/site-packages/vllm/envs.py", readonly=True), {}, "reject"),
    ("mounts", mount("/data"), {"host": {"links": {"/srv/x/m": "/mnt/m"}}}, "reject"),
    ("mounts", mount("/data"), {"host": {"links": {"/srv/x/m": "/srv/x/n"}}}, None),
    ("mounts", mount("/data"), {"host": {"missing": ["x"]}}, "reject"),
    ("overlay-permissions", {"patches": ["pp-index-transport"]}, {"host": {"loose": ["/p/overlays/x.py"]}}, "reject"),
    ("overlay-permissions", {"patches": ["pp-index-transport"]}, {}, None),
    # secrets
    ("secrets", serve(api_key="anything"), {}, "reject"),
    ("secrets", serve(hf_token=SECRET), {}, "reject"),
    ("secrets", serve(served_model_name=SECRET), {}, "reject"),
    ("secrets", env(HF_TOKEN="anything"), {}, "reject"),
    ("secrets", env(HF_TOKEN=""), {}, None),
    ("secrets", env(EXTRA=f"--token={SECRET}"), {}, "reject"),
    ("secrets", env(TOKENIZERS_PARALLELISM="false", MAX_TOKENS="5"), {}, None),
    ("secrets", env(CACHE="hf_home_directory_of_models"), {}, None),
    ("secrets", {"engine": {"command": ["--key", SECRET]}}, {}, "reject"),
    ("secrets", {"secrets": ["HF_TOKEN"]}, {}, None),
    ("secrets", env(ID="AKIA" + "Z9" * 8), {}, "reject"),
    ("secrets", env(ID="AKIA" + "Z9" * 7), {}, None),
    ("secrets", env(ID="sk-" + "a-b_" * 5), {}, "reject"),
    ("secrets", env(ID="task-" + "a-b_" * 5), {}, None),
    ("remote-code", serve(trust_remote_code=True), {}, "reject"),
    ("remote-code", {**serve(trust_remote_code=True), "allow": ["trust-remote-code"]}, {}, "info"),
    ("remote-code", serve(trust_remote_code=False), {}, None),
    # history
    ("compile-cache", tensor(2), {"host": {"caches": {"/c": "tp4-pp1"}}}, "reject"),
    ("compile-cache", tensor(2), {"host": {"caches": {"/c": "tp2-pp1"}}}, None),
    ("compile-cache", {**mount("/root/.cache/vllm", readonly=False), "patches": ["pp-index-transport"]}, {}, "warn"),
    ("compile-cache", mount("/root/.cache/vllm", readonly=False), {}, None),
    (
        "earlier-log",
        {},
        {"log": "Free memory on device cuda:0 (59.32/79.15 GiB) on startup is less than desired"},
        "reject",
    ),
    ("earlier-log", {}, {"log": "Cuda error custom_all_reduce.cuh:310 'invalid argument'"}, "reject"),
    (
        "earlier-log",
        {},
        {"log": RAY_LOG},
        "reject",
    ),
    ("earlier-log", {}, {"log": "Application startup complete."}, None),
]


@pytest.mark.parametrize(
    ("gate", "layout", "facts", "verdict"),
    SITUATIONS,
    ids=[f"{n}-{row[0]}-{row[3]}" for n, row in enumerate(SITUATIONS)],
)
def test_a_gate_speaks_when_it_must_and_only_then(
    gate: str, layout: dict[str, Any], facts: dict[str, Any], verdict: str | None, ask: Ask
) -> None:
    found = ask(layout, facts, gate)
    worst = found[0].verdict if found else None
    assert worst == verdict, found


def test_no_situation_prints_a_planted_secret(ask: Ask) -> None:
    for layout in (serve(hf_token=SECRET), env(HF_TOKEN=SECRET), {"engine": {"command": [SECRET]}}):
        assert SECRET not in str(ask(layout, {}))


def test_every_gate_of_this_table_speaks_once_and_is_silent_once() -> None:
    spoke = {gate for gate, _, _, verdict in SITUATIONS if verdict is not None}
    silent = {gate for gate, _, _, verdict in SITUATIONS if verdict is None}
    assert spoke == silent


def test_an_axis_of_one_rank_is_not_named_in_the_shape(ask: Ask) -> None:
    (found,) = ask({**tensor(16), **serve(data_parallel_size=1)}, {"gpus": CARDS}, "world-size")
    assert "(TP=16, PP=1)" in found.message
    (found,) = ask({**tensor(16), **serve(data_parallel_size=2)}, {"gpus": CARDS}, "world-size")
    assert "(TP=16, PP=1, DP=2)" in found.message


def test_a_removed_and_a_newer_flag_are_told_apart(ask: Ask) -> None:
    removed = ask(serve(enable_bf16x3_router_gemm=True), {}, "engine-flags")[0]
    assert "removed or renamed after 0.28.0" in removed.message
    newer = ask(serve(monokernel="x"), {}, "engine-flags")[0]
    assert "it came with 0.33.0" in newer.message


def test_the_full_name_is_given_for_an_abbreviation(ask: Ask) -> None:
    assert ask(serve(kv_cache_memory=5), {}, "engine-flags")[0].fix == "write serve.kv_cache_memory_bytes"


def test_expert_parallelism_is_offered_only_where_it_is_enough(ask: Ask) -> None:
    heads_too = ask(tensor(3), {"model": {**MOE, "num_attention_heads": 64, "moe_intermediate_size": 1000}})
    width = next(finding for finding in heads_too if "routed expert" in finding.message)
    assert "enable_expert_parallel" not in width.fix
    alone = ask(tensor(3), {"model": {**MOE, "num_attention_heads": 66, "moe_intermediate_size": 1000}})
    width = next(finding for finding in alone if "routed expert" in finding.message)
    assert width.fix.startswith("serve: {enable_expert_parallel: true}")


def test_the_nearest_flag_is_named(ask: Ask) -> None:
    assert "serve.max_model_len" in ask(serve(max_modle_len=5), {}, "engine-flags")[0].fix


def test_a_script_that_starts_the_engine_is_not_judged_as_flags(ask: Ask) -> None:
    layout = {"engine": {"command": ["--anything", "goes"], "entrypoint": ["run.sh"]}}
    assert ask(layout, {}, "engine-flags") == []


def test_the_list_of_gates_has_no_gate_twice() -> None:
    assert len(set(GATES)) == len(GATES)
