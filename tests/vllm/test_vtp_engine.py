"""Odd tensor parallelism on the real engine: a tiny DeepSeek-V4 at TP=3 is as near to TP=1 as TP=2 is.

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

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
HARNESS = Path(__file__).parent / "vtp"
TRITON = "3.9.0"
FIRST_TOKENS = 3
ALLOWED = 1.5

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def triton_site() -> Path:
    """A folder with Triton for PYTHONPATH; the engine's own environment stays without it."""
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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dsv4") / "tiny"
    subprocess.run([sys.executable, str(HARNESS / "tiny_checkpoint.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def sidecar(checkpoint: Path) -> Path:
    folder = checkpoint.with_name("tp3")
    command = ["vtp", "sidecar", str(checkpoint), "--tp", "3", "--out", str(folder)]
    subprocess.run([sys.executable, str(ROOT / "deploy.py"), *command], check=True, capture_output=True)
    return folder


class Engine:
    """Runs a script in the engine with an overlay in front of it."""

    def __init__(self, farm: Path, triton: Path, scratch: Path) -> None:
        self.scratch = scratch
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
            "PYTHONPATH": f"{farm}:{triton}",
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

    def run(self, name: str, model: Path, tp: int) -> tuple[int, str]:
        """Exit status and log of one generation; answers and live parameters go to `name` in the scratch folder."""
        dump = self.scratch / f"{name}.parameters"
        dump.mkdir(exist_ok=True)
        command = [sys.executable, str(HARNESS / "generate.py"), str(model), str(tp), str(self.answers_file(name))]
        log = self.scratch / f"{name}.log"
        with log.open("w") as stream:
            environment = {**self.environment, "DUMP_PARAMETERS": str(dump)}
            done = subprocess.run(command, env=environment, stdout=stream, stderr=subprocess.STDOUT, timeout=900)
        return done.returncode, log.read_text()

    def answers_file(self, name: str) -> Path:
        return self.scratch / f"{name}.json"

    def answers(self, name: str) -> list[dict[str, Any]]:
        return json.loads(self.answers_file(name).read_text())

    def parameters(self, name: str, rank: int) -> dict[str, Any]:
        return torch.load(self.scratch / f"{name}.parameters" / f"rank{rank}.pt")


def build(patch: Path, destination: Path) -> Path:
    """The link farm of an overlay with a form of the patch and the harness."""
    tree = InstalledTree(sys.executable)
    build_overlay([read_patch(patch), read_patch(HARNESS / "dsv4-cpu")], tree.vllm_version, tree, destination)
    return build_farm(destination, Path(tree.root))


@pytest.fixture(scope="module")
def engine(triton_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    scratch = tmp_path_factory.mktemp("engine")
    return Engine(build(ROOT / "patches/virtual-tp", scratch / "overlay"), triton_site, scratch)


@pytest.fixture(scope="module")
def runs(engine: Engine, checkpoint: Path, sidecar: Path) -> Engine:
    """TP=1 and TP=2 on the checkpoint, TP=3 on its sidecar."""
    for name, model, tp in (("tp1", checkpoint, 1), ("tp2", checkpoint, 2), ("tp3", sidecar, 3)):
        status, log = engine.run(name, model, tp)
        assert status == 0, log[-4000:]
    return engine


def difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean |difference| of all prompt logprobs, and the largest over the answers' shared prefixes."""
    prompt = [
        abs(a - b)
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x["prompt_logprobs"], y["prompt_logprobs"], strict=True)
    ]
    shared = [0.0]
    for x, y in zip(one, other, strict=True):
        for step, (a, b) in enumerate(zip(x["logprobs"], y["logprobs"], strict=True)):
            if x["tokens"][step] != y["tokens"][step]:
                break
            shared.append(abs(a - b))
    return sum(prompt) / len(prompt), max(shared)


def test_tp3_is_as_near_to_tp1_as_tp2_is(runs: Engine):
    one, two, three = (runs.answers(name) for name in ("tp1", "tp2", "tp3"))
    for expected, got in zip(one, three, strict=True):
        assert got["tokens"][:FIRST_TOKENS] == expected["tokens"][:FIRST_TOKENS]
    (mean_two, most_two), (mean_three, most_three) = difference(one, two), difference(one, three)
    assert mean_three <= ALLOWED * mean_two
    assert most_three <= ALLOWED * most_two


def test_every_rank_audits_what_it_loaded(runs: Engine):
    log = (runs.scratch / "tp3.log").read_text()
    for rank in range(3):
        assert f"[overlay] virtual-tp audit tp_rank={rank} tp=3 model=DeepseekV4ForCausalLM" in log
    assert "virtual-tp audit" not in (runs.scratch / "tp2.log").read_text(), "without a plan the patch does nothing"


def test_live_parameters_are_the_checkpoint_once_the_padding_is_stripped(runs: Engine, sidecar: Path):
    whole = runs.parameters("tp1", 0)
    parts = [runs.parameters("tp3", rank) for rank in range(3)]
    compared = padded = 0
    for name, expected in whole.items():
        pieces = [part[name] for part in parts]
        if "attn_sink" in name:
            joined = torch.cat(pieces)
            assert torch.equal(joined[: len(expected)], expected) and torch.isneginf(joined[len(expected) :]).all()
        elif pieces[0].shape == expected.shape:
            assert all(torch.equal(piece, expected) for piece in pieces), name
        else:
            (dim,) = [axis for axis in range(expected.ndim) if pieces[0].shape[axis] != expected.shape[axis]]
            halves = 2 if "w13_weight" in name or "gate_up_proj" in name else 1
            for half in range(halves):
                wanted = expected.chunk(halves, dim)[half]
                joined = torch.cat([piece.chunk(halves, dim)[half] for piece in pieces], dim)
                real, tail = joined.split([wanted.shape[dim], joined.shape[dim] - wanted.shape[dim]], dim)
                assert torch.equal(real.view(torch.uint8), wanted.contiguous().view(torch.uint8)), name
                assert not tail.contiguous().view(torch.uint8).any(), name
                padded += tail.numel()
        compared += 1
    assert compared == len(whole) == len(parts[0])
    assert padded > 0


def test_without_the_padding_of_experts_it_loads_and_is_wrong(
    runs: Engine, triton_site: Path, sidecar: Path, tmp_path: Path
):
    patch = tmp_path / "virtual-tp"
    shutil.copytree(ROOT / "patches/virtual-tp", patch)
    module = patch / "virtual_tp.pyfrag"
    text = module.read_text()
    for old, new in (
        ("if piece.part not in engine_pads:", "if piece.part not in engine_pads and piece.expert < 0:"),
        ('records = module.__dict__.pop("_virtual_tp_records", None)', "records = None"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    module.write_text(text)
    unpadded = Engine(build(patch, tmp_path / "overlay"), triton_site, tmp_path)
    status, log = unpadded.run("unpadded", sidecar, 3)
    assert status == 0, "it loads without an error: " + log[-2000:]
    one = runs.answers("tp1")
    mean_two, _ = difference(one, runs.answers("tp2"))
    mean_unpadded, _ = difference(one, unpadded.answers("unpadded"))
    assert mean_unpadded > ALLOWED * mean_two, "the rule that TP=3 must meet says no here"


def test_a_tp2_engine_refuses_a_tp3_folder(engine: Engine, sidecar: Path):
    status, log = engine.run("wrong-tp", sidecar, 2)
    assert status != 0
    assert "virtual-tp: this model folder was written for TP=3, but the engine runs TP=2" in log


def draft(model: Path, tp: int, overrides: dict[str, int] | None = None) -> dict[str, Any]:
    command = [sys.executable, str(HARNESS / "draft_config.py"), str(model), str(tp)]
    command += [json.dumps(overrides)] if overrides else []
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_mtp_draft_reads_the_plan_and_overrides_do_not_reach_it(checkpoint: Path, sidecar: Path, tmp_path: Path):
    folder = tmp_path / "with-mtp"
    folder.mkdir()
    config = json.loads((checkpoint / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    padded = {"num_attention_heads": 36, "o_groups": 9, "moe_intermediate_size": 288}
    entry = json.loads((sidecar / "config.json").read_text())["virtual_tp"]
    with_mtp = tmp_path / "sidecar"
    with_mtp.mkdir()
    (with_mtp / "config.json").write_text(
        json.dumps({**config, "num_nextn_predict_layers": 1, **padded, "virtual_tp": entry})
    )
    found = draft(with_mtp, 3)
    assert found["architectures"] == ["DeepSeekV4MTPModel"]
    assert (found["heads"], found["groups"], found["routed"]) == (36, 9, 288)
    assert found["plan"]["tp_size"] == 3
    assert "32" in draft(folder, 3, padded)["error"], "the draft still has 32 heads, which 3 does not divide"
