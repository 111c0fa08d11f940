"""From log lines to phases: texts of vLLM 0.28 to 0.33, and a whole recorded start."""

from __future__ import annotations

import pytest
from runtime_samples import DATA, HEALTHY, recorded

from shardwright.runtime.phases import Phase, advance, is_fatal, see_phase

LINES = [
    ("(APIServer pid=1) INFO 11-30 21:10:32 [api_utils.py:286] non-default args: {'port': 8000}", Phase.STARTING),
    ("(EngineCore pid=9) INFO 11-30 [core.py:123] x", None),
    ("(Worker_TP0 pid=1) INFO 11-30 21:10:58 [model_runner.py:381] Loading model from scratch...", Phase.WEIGHTS),
    ("(Worker_TP0 pid=1) INFO 11-30 21:10:58 [gpu_model_runner.py:5400] Starting to load model /m...", Phase.WEIGHTS),
    ("(Worker pid=1) \rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00]", Phase.WEIGHTS),
    ("INFO 11-30 21:10:58 [default_loader.py:430] Loading weights took 41.02 seconds", Phase.WEIGHTS),
    (
        "(Worker_PP1_TP3 pid=8) INFO 11-30 21:10:58 [m.py:1] Model loading took 61.2 GiB memory and 80.1 seconds",
        Phase.PROFILE,
    ),
    ("INFO 11-30 21:10:58 [backends.py:1156] Dynamo bytecode transform time: 12.30 s", Phase.COMPILE),
    ("INFO 11-30 21:10:58 [backends.py:394] Compiling a graph for compile range (1, 8192) takes 9.1 s", Phase.COMPILE),
    ("INFO 11-30 21:10:58 [b.py:1] Directly load the compiled graph(s) for compile range (1, 2) x", Phase.COMPILE),
    ("INFO 11-30 21:10:58 [gpu_worker.py:641] Available KV cache memory: 17.26 GiB", Phase.KV_ALLOCATION),
    (
        "INFO 11-30 21:10:58 [k.py:1] GPU KV cache size: 729,280 tokens, Maximum concurrency for 524,288 tokens per x",
        Phase.KV_ALLOCATION,
    ),
    ("INFO 11-30 21:10:58 [k.py:1] CPU KV cache size: 349,440 tokens, Maximum", Phase.KV_ALLOCATION),
    ("INFO 11-30 21:10:58 [w.py:360] Running FlashInfer autotune with 8192 tokens and token buckets x", Phase.WARMUP),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  12%|#   | 3/35 [00:18<00:02,  1.72it/s]", Phase.GRAPHS),
    ("INFO 11-30 21:10:58 [m.py:1067] Graph capturing finished in 21 secs, took 1.35 GiB", Phase.GRAPHS),
    (
        "(EngineCore pid=9) INFO 11-30 21:10:58 [core.py:338] init engine (profile, create kv cache, warmup model) took"
        " 91.79 s (compilation: 30.1 s)",
        Phase.API,
    ),
    ("(APIServer pid=1) INFO 11-30 21:11:01 [entry.py:139] Starting vLLM server on http://0.0.0.0:8000", Phase.API),
    ("(APIServer pid=1) INFO:     Application startup complete.", Phase.API),
    ("(APIServer pid=1) INFO:     127.0.0.1:48788 - \"POST /v1/completions HTTP/1.1\" 200 OK", None),
    ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "phase"), LINES)
def test_each_known_text_shows_its_phase(line: str, phase: Phase | None) -> None:
    seen = see_phase(line)
    assert (seen.phase if seen else None) is phase


def test_the_worker_that_said_it_is_kept() -> None:
    seen = see_phase(
        "\x1b[0;36m(Worker_PP1_TP0 pid=31)\x1b[0;0m INFO 11-30 21:10:58 [x.py:1] Model loading took 61 GiB memory"
    )
    assert seen is not None
    assert seen.worker == "Worker_PP1_TP0 pid=31"
    assert seen.message == "Model loading took 61 GiB memory"


def test_the_prefix_of_compose_does_not_hide_a_phase() -> None:
    seen = see_phase("vllm-1  | (APIServer pid=1) INFO:     Application startup complete.")
    assert seen is not None
    assert seen.phase is Phase.API


def test_a_slow_worker_does_not_take_the_engine_back() -> None:
    assert advance(Phase.KV_ALLOCATION, Phase.WEIGHTS) is Phase.KV_ALLOCATION
    assert advance(Phase.API, Phase.GRAPHS) is Phase.API


def test_cpus_compile_after_the_kv_pool_and_gpus_before() -> None:
    assert advance(Phase.KV_ALLOCATION, Phase.COMPILE) is Phase.COMPILE
    assert advance(Phase.COMPILE, Phase.KV_ALLOCATION) is Phase.KV_ALLOCATION


def test_no_line_of_a_healthy_start_is_fatal() -> None:
    served = recorded(HEALTHY)
    assert not [line for line in served if is_fatal(line)]


@pytest.mark.parametrize("name", ["partition-sum.log", "first-token-500.log"])
def test_the_death_of_the_core_is_fatal_in_recorded_logs(name: str) -> None:
    assert any(map(is_fatal, recorded(name)))


def test_a_mere_mention_of_the_dead_core_is_not_fatal() -> None:
    assert not is_fatal("(APIServer pid=1) INFO 11-30 21:11:01 [x.py:1] EngineDeadError: seen in a prompt")


def test_every_recorded_log_is_free_of_this_host() -> None:
    for log in DATA.glob("*.log"):
        assert "/home/" not in log.read_text()
