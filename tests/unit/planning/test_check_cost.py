"""What `deploy check` costs on a checkpoint of a hundred shards: time as a multiple of an import, and bytes read."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from planning_samples import write_shard

from tests.unit.helpers import ROOT, clean_environment

# About 4 where this was written, so that a check ten times as slow is far beyond it.
MOST_IMPORTS = 15
IMPORTS = (sys.executable, "-c", "import yaml, msgspec")
# Runs the command and says how many bytes its process asked the system for; what it waited for does not count.
COUNTED = """
import re, sys
from shardwright.cli.main import run
code = run(sys.argv[1:])
print(re.search(r"rchar: (\\d+)", open("/proc/self/io").read())[1], file=sys.stderr)
sys.exit(code)
"""
SHARDS, TENSORS = 100, 100
SHAPE = (2048, 640)
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 80}


def project(root: Path) -> Path:
    """A layout whose model folder lies beside it; its weights are holes in the files."""
    folder = root / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_attention_heads": 64}))
    (root / "case.yaml").write_text(
        "schema: shardwright/v1\nname: case\nmodel: {path: checkpoint}\n"
        'engine: {image: "engine:1.0", vllm: "0.30.0"}\ncontainer: {ipc: host}\n'
    )
    return folder


def write_shards(folder: Path) -> int:
    """The shards and their index; how many bytes of weights they hold."""
    names = {}
    for shard in range(SHARDS):
        file = f"model-{shard:05}.safetensors"
        tensors = {
            f"model.layers.{shard % 80}.mlp.experts.{shard}{i}.up_proj.weight": (
                "BF16",
                [*SHAPE],
                SHAPE[0] * SHAPE[1] * 2,
            )
            for i in range(TENSORS)
        }
        write_shard(folder / file, tensors)
        names.update(dict.fromkeys(tensors, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return SHARDS * TENSORS * SHAPE[0] * SHAPE[1] * 2


def cpu_seconds(words: Sequence[str], root: Path) -> float:
    environment = clean_environment(DEPLOY_PROJECT=str(root))
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    pid = os.posix_spawn(words[0], words, environment, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 1)
    return usage.ru_utime + usage.ru_stime


def bytes_read(root: Path) -> int:
    result = subprocess.run(
        [sys.executable, "-c", COUNTED, "check", str(root / "case.yaml"), "--json"],
        env=clean_environment(DEPLOY_PROJECT=str(root), PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    return int(result.stderr.split()[-1])


def test_a_check_of_a_hundred_shards_costs_a_few_imports(tmp_path: Path) -> None:
    write_shards(project(tmp_path))
    check = (sys.executable, str(ROOT / "deploy.py"), "check", str(tmp_path / "case.yaml"), "--json")
    cpu_seconds(check, tmp_path)
    ratios = [cpu_seconds(check, tmp_path) / cpu_seconds(IMPORTS, tmp_path) for _ in range(3)]
    assert statistics.median(ratios) < MOST_IMPORTS


def test_a_check_reads_a_thousandth_of_the_checkpoint_at_most(tmp_path: Path) -> None:
    folder = project(tmp_path)
    without = bytes_read(tmp_path)
    weights = write_shards(folder)
    assert 0 < bytes_read(tmp_path) - without < 0.001 * weights
