"""A tiny DeepSeek-V4 on the real engine's CPU, with the patch virtual-tp and what the CPU needs besides.

Needs the CPU kernels of DeepSeek-V4 (avx512_bf16) and Triton's interpreter, whose wheel is fetched once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardwright.connect.trees import InstalledTree
from shardwright.overlay.build import build_overlay
from shardwright.overlay.farm import build_farm
from shardwright.overlay.patch import read_patch

ROOT = Path(__file__).resolve().parents[2]
PATCH = ROOT / "patches/virtual-tp"
HARNESS = Path(__file__).parent / "vtp"
CPU_PATCH = HARNESS / "dsv4-cpu"
TRITON = "3.9.0"
SETTINGS = {
    "TRITON_INTERPRET": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


def triton_site() -> Path:
    """A folder with Triton for PYTHONPATH; the engine's own environment stays without it. Skips where it cannot run."""
    torch = pytest.importorskip("torch")
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("the CPU has no avx512_bf16, which vLLM's DeepSeek-V4 kernels for the CPU need")
    site = ROOT / ".deploy" / f"test-triton-{TRITON}"
    if not (site / "triton").is_dir():
        wheels = site.with_suffix(".wheels")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"triton=={TRITON}", "-d", str(wheels)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"triton {TRITON} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
        partial = site.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            wheel.extractall(partial)
        shutil.rmtree(wheels)
        # Compilers for GPUs; the interpreter does without.
        for folder in ("nvidia/bin", "nvidia/lib", "amd/lib"):
            shutil.rmtree(partial / "triton/backends" / folder, ignore_errors=True)
        partial.rename(site)
    return site


class Engine:
    """Runs a script in the engine with an overlay in front of it."""

    def __init__(self, farm: Path, triton: Path, scratch: Path) -> None:
        self.scratch = scratch
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
            "PYTHONPATH": f"{farm}:{triton}",
            **SETTINGS,
        }

    def run(self, name: str, model: Path, tp: int, *method: str) -> tuple[int, str]:
        """Exit status and log of one generation; answers and live parameters go to `name` in the scratch folder.

        A speculative `method` drafts two tokens a step.
        """
        dump = self.scratch / f"{name}.parameters"
        dump.mkdir(exist_ok=True)
        words = [str(model), str(tp), str(self.answers_file(name)), *method]
        command = [sys.executable, str(HARNESS / "generate.py"), *words]
        log = self.scratch / f"{name}.log"
        with log.open("w") as stream:
            environment = {**self.environment, "DUMP_PARAMETERS": str(dump)}
            done = subprocess.run(command, env=environment, stdout=stream, stderr=subprocess.STDOUT, timeout=900)
        return done.returncode, log.read_text()

    def answers_file(self, name: str) -> Path:
        return self.scratch / f"{name}.json"

    def answers(self, name: str) -> list[dict[str, Any]]:
        return json.loads(self.answers_file(name).read_text())

    def drafts(self, name: str) -> dict[str, int]:
        """How many tokens were drafted and accepted, by the engine's own counters."""
        return json.loads(self.answers_file(name).with_suffix(".drafts.json").read_text())

    def parameters(self, name: str, rank: int) -> dict[str, Any]:
        import torch

        return torch.load(self.scratch / f"{name}.parameters" / f"rank{rank}.pt")


class Project:
    """A project with one layout, `demo`, whose engine the command itself starts, proves and stops."""

    def __init__(self, root: Path, model: Path, tp: int, triton: Path, port: int) -> None:
        self.root = root
        layout = {
            "schema": "shardwright/v1",
            "name": "demo",
            "runtime": "local",
            "model": {"path": str(model)},
            "engine": {"vllm": "0.30.0", "platform": "cpu", "python": sys.executable},
            "parallel": {"tensor": tp, "pipeline": 1},
            "serve": {
                "dtype": "bfloat16",
                "enforce_eager": True,
                "max_model_len": 1024,
                "max_num_seqs": 4,
                "max_num_batched_tokens": 1024,
                "kv_cache_dtype": "fp8",
                "enable_prefix_caching": False,
                "distributed_executor_backend": "mp",
            },
            "env": {**SETTINGS, "PYTHONPATH": str(triton)},
            "container": {"publish": f"127.0.0.1:{port}:8000"},
            "patches": [PATCH.name, CPU_PATCH.name],
        }
        shutil.copytree(CPU_PATCH, root / "patches" / CPU_PATCH.name)
        file = root / "configs/layouts/demo.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(layout))

    def deploy(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DEPLOY_PROJECT": str(self.root)}
        command = [sys.executable, str(ROOT / "deploy.py"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)

    @property
    def log(self) -> Path:
        """The log of the engine that was started."""
        (found,) = (self.root / ".deploy/local").glob("demo-*/engine.log")
        return found


def build(destination: Path, *patches: Path) -> Path:
    """The link farm of an overlay with these patches."""
    tree = InstalledTree(sys.executable)
    build_overlay([read_patch(patch) for patch in patches], tree.vllm_version, tree, destination)
    return build_farm(destination, Path(tree.root))


def write_checkpoint(folder: Path, draft_layers: int = 0) -> Path:
    command = [sys.executable, str(HARNESS / "tiny_checkpoint.py"), str(folder), str(draft_layers)]
    subprocess.run(command, check=True)
    return folder


def write_sidecar(checkpoint: Path, tp: int) -> Path:
    folder = checkpoint.with_name(f"{checkpoint.name}-tp{tp}")
    command = ["vtp", "sidecar", str(checkpoint), "--tp", str(tp), "--out", str(folder)]
    subprocess.run([sys.executable, str(ROOT / "deploy.py"), *command], check=True, capture_output=True)
    return folder
