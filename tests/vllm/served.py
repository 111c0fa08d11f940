"""A real vLLM server on the CPU, ended with all its processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shardwright.errors import DeployError
from shardwright.probes.wire import Endpoint, get

MODEL = "needle-tiny"
"""The name under which every model is served."""

_START_TIMEOUT_S = 300
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
}


@contextmanager
def engine(
    model: Path, log: Path, *options: str, max_model_len: int = 2048, settings: Mapping[str, str] | None = None
) -> Iterator[Endpoint]:
    """Serve `model` while the `with` block runs; `settings` are further variables of its environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--served-model-name", MODEL]
    argv += ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(max_model_len), "--max-num-seqs", "8"]
    argv += ["--host", "127.0.0.1", "--port", str(port), *options]
    env = {**os.environ, **_SETTINGS, **(settings or {})}
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        endpoint = Endpoint(f"http://127.0.0.1:{port}", idle_timeout_s=300)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _healthy(endpoint):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield endpoint
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _healthy(endpoint: Endpoint) -> bool:
    try:
        return get(endpoint, "/health").status == 200
    except DeployError:
        return False
