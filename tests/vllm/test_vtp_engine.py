"""Odd tensor parallelism on the real engine: a tiny DeepSeek-V4 at TP=3 is as near to TP=1 as TP=2 is."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.vtp_harness import (
    CPU_PATCH,
    HARNESS,
    PATCH,
    Engine,
    Project,
    build,
    triton_site,
    write_checkpoint,
    write_sidecar,
)

torch = pytest.importorskip("torch")

FIRST_TOKENS = 3
ALLOWED = 1.5

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def triton() -> Path:
    return triton_site()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("dsv4") / "tiny")


@pytest.fixture(scope="module")
def sidecar(checkpoint: Path) -> Path:
    return write_sidecar(checkpoint, 3)


@pytest.fixture(scope="module")
def engine(triton: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    scratch = tmp_path_factory.mktemp("engine")
    return Engine(build(scratch / "overlay", PATCH, CPU_PATCH), triton, scratch)


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
        line = f"virtual-tp audit role=target pp_rank=0 tp_rank={rank} tp=3 model=DeepseekV4ForCausalLM"
        assert f"[overlay] {line}" in log
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
    runs: Engine, triton: Path, sidecar: Path, tmp_path: Path
):
    patch = tmp_path / "virtual-tp"
    shutil.copytree(PATCH, patch)
    module = patch / "virtual_tp.pyfrag"
    text = module.read_text()
    for old, new in (
        ("if piece.part not in engine_pads:", "if piece.part not in engine_pads and piece.expert < 0:"),
        ('records = module.__dict__.pop("_virtual_tp_records", None)', "records = None"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    module.write_text(text)
    unpadded = Engine(build(tmp_path / "overlay", patch, CPU_PATCH), triton, tmp_path)
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


@pytest.fixture(scope="module")
def served(sidecar: Path, triton: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """TP=3 on the sidecar, started by the command."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    project = Project(tmp_path_factory.mktemp("served"), sidecar, 3, triton, port)
    try:
        for words in (("patch", "build"), ("start",), ("wait",)):
            done = project.deploy(*words, "demo")
            assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        yield project
    finally:
        project.deploy("stop", "demo")


def hits(project: Project) -> tuple[int, list[dict[str, str]]]:
    """What `deploy patch prove` ends with, and what it says of the log lines of virtual-tp."""
    done = project.deploy("patch", "prove", "demo", "--json")
    rows = json.loads(done.stdout)["rows"]
    return done.returncode, [row for row in rows if row["rung"] == "hits" and row["patch"] == PATCH.name]


def test_prove_says_yes_of_an_engine_whose_ranks_all_audited(served: Project):
    status, rows = hits(served)
    assert status == 0
    assert [row["verdict"] for row in rows] == ["OK", "OK"]


def test_prove_says_no_where_the_audit_line_of_one_rank_is_absent(served: Project):
    lines = served.log.read_text().splitlines(keepends=True)
    silent = [line for line in lines if "virtual-tp audit" not in line or "tp_rank=1 " not in line]
    assert len(silent) == len(lines) - 1
    served.log.write_text("".join(silent))
    try:
        status, rows = hits(served)
    finally:
        served.log.write_text("".join(lines))
    assert status == 1
    assert [row["verdict"] for row in rows] == ["NOT_LIVE", "OK"]
    assert rows[0]["message"].endswith("of TP rank 1")


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
