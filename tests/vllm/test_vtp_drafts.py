"""Drafts at an odd TP: MTP on the real engine, DSpark by its own loader; both get the plan and are audited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwright.campaign.vtp.checks import plan_document
from shardwright.connect.trees import InstalledTree
from shardwright.overlay.patch import read_patch
from shardwright.overlay.prove import CONDITIONS, expected_hits, hits_rung, reach_rung
from shardwright.overlay.reach import Reacher
from tests.unit.vtp.vtp_samples import FLASH, plan
from tests.vllm.vtp_harness import (
    CPU_PATCH,
    HARNESS,
    PATCH,
    Engine,
    build,
    triton_site,
    write_checkpoint,
    write_sidecar,
)

pytestmark = pytest.mark.vllm
RANKS = range(3)


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sidecar(write_checkpoint(tmp_path_factory.mktemp("dsv4") / "with-draft", draft_layers=1), 3)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    triton, scratch = triton_site(), tmp_path_factory.mktemp("engine")
    return Engine(build(scratch / "overlay", PATCH, CPU_PATCH), triton, scratch)


@pytest.fixture(scope="module")
def runs(engine: Engine, sidecar: Path) -> Engine:
    """TP=3 on the sidecar, without and with MTP."""
    for name, method in (("off", ()), ("mtp", ("mtp",))):
        status, log = engine.run(name, sidecar, 3, *method)
        assert status == 0, log[-4000:]
    return engine


def tokens(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["tokens"] for answer in answers]


def test_the_final_tokens_with_mtp_are_those_without_it(runs: Engine):
    assert tokens(runs.answers("mtp")) == tokens(runs.answers("off"))


def test_padded_ranks_draft_tokens_that_are_accepted(runs: Engine):
    counted = runs.drafts("mtp")
    drafted, accepted = (counted[f"vllm:spec_decode_num_{what}_tokens"] for what in ("draft", "accepted"))
    assert 0 < accepted <= drafted
    assert accepted > drafted / 10, "the checkpoint is made so that a draft of one layer can guess"


def test_the_log_proves_target_and_draft_on_every_rank(runs: Engine):
    patch, log = read_patch(PATCH), (runs.scratch / "mtp.log").read_text().splitlines()
    rows = list(hits_rung(patch, expected_hits(patch, [[]], 3, CONDITIONS), log, "demo"))
    assert [row.verdict for row in rows] == ["OK", "OK"], rows
    off = (runs.scratch / "off.log").read_text().splitlines()
    target, draft = hits_rung(patch, expected_hits(patch, [[]], 3, CONDITIONS), off, "demo")
    assert (target.verdict, draft.verdict) == ("OK", "NOT_LIVE"), "the proof of a draft says no where none ran"


@pytest.mark.parametrize("served", [True, False], ids=["draft", "no-draft"])
def test_every_edit_is_run_on_cuda_by_the_target_or_by_a_draft(served: bool):
    patch, reacher = read_patch(PATCH), Reacher(InstalledTree(sys.executable))
    edits = patch.edits_for("0.30.0")
    names = [*patch.reach.models, *(patch.reach.drafts if served else ())]
    reached = {edit.id: reacher.reached(edit, names, "cuda") for edit in edits}
    spare = [edit.id for edit in edits if not served and reacher.reached(edit, patch.reach.drafts, "cuda")]
    rows = {row.subject: row.verdict for row in reach_rung(patch, edits, reached, "x", "cuda", "demo", spare)}
    unknown = [subject for subject, verdict in rows.items() if verdict == "UNKNOWN"]
    assert set(rows.values()) == {"OK", "UNKNOWN"}
    assert unknown == ["vllm.model_executor.layers.fused_moe.oracle.mxfp4"], "no model code; the audit's line decides"


def test_dspark_is_refused_by_the_engine_on_a_cpu(engine: Engine, sidecar: Path):
    status, log = engine.run("dspark", sidecar, 3, "dspark")
    assert status != 0
    assert "Model Runner V1 does not support: dspark speculative decoding" in log


@pytest.fixture(scope="module")
def dspark(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    folder = tmp_path_factory.mktemp("dspark")
    document = folder / "plan.json"
    document.write_text(json.dumps(plan_document(plan(FLASH, 3))))
    environment = {**os.environ, "PYTHONPATH": str(build(folder / "overlay", PATCH)), "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-B", str(HARNESS / "dspark_load.py"), str(document)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_dspark_loader_pads_its_stages_and_audits_every_rank(dspark: dict[str, list[list[str]]]):
    patch, log = read_patch(PATCH), [line for rank in dspark["padded"] for line in rank]
    _, draft = expected_hits(patch, [[]], 3, CONDITIONS)
    assert [row.verdict for row in hits_rung(patch, [draft], log, "demo")] == ["OK"], log
    assert all("DSparkDeepseekV4ForCausalLM" in line for line in log)


def test_a_dspark_draft_with_unpadded_experts_is_found_on_every_rank(dspark: dict[str, list[list[str]]]):
    for rank, lines in zip(RANKS, dspark["unpadded"], strict=True):
        assert len(lines) == 1 and f"audit of TP rank {rank} found" in lines[0]
        assert "model.layers.0.ffn.experts" in lines[0]
