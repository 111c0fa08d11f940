"""Patches, waivers and the status that a layout gives itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.campaign.request import Request
from tests.unit.helpers import BASE, GLM, Result, findings, request_for

Cli = Callable[..., Result]


def messages(request: Request, gate: str) -> list[str]:
    return [f"{finding.verdict}: {finding.message}" for finding in findings(request, gate)]


def test_a_patch_that_does_not_exist_is_refused_by_name(tmp_path: Path):
    request = request_for(tmp_path, BASE + "patches: [virtual-tq]\n")
    assert messages(request, "patches") == ["reject: the patch virtual-tq does not exist here"]


def test_a_patch_without_edits_for_the_engine_is_refused(tmp_path: Path):
    request = request_for(tmp_path, GLM + "engine: {vllm: '0.27.0'}\npatches: [pp-index-transport]\n")
    (message,) = messages(request, "patches")
    assert "reject: the patch pp-index-transport has no edits for vLLM 0.27.0, only for >=0.28" in message
    assert request.deployment.overlay is None, "nothing is mounted that cannot be built"


def test_a_patch_for_another_platform_is_refused(tmp_path: Path):
    request = request_for(tmp_path, GLM + "patches: [pp-cpu-eager]\n")
    assert messages(request, "patches") == ["reject: the patch pp-cpu-eager is for cpu, but the engine runs on cuda"]


def test_patches_that_exclude_each_other_are_refused(tmp_path: Path):
    request = request_for(tmp_path, GLM + "patches: [pp-index-transport, pp-index-recompute]\n")
    assert any("exclude each other" in message for message in messages(request, "patches"))


def test_a_required_patch_that_is_missing_is_named(tmp_path: Path):
    folder = tmp_path / "patches" / "needy"
    folder.mkdir(parents=True)
    (folder / "body.pyfrag").write_text("pass\n")
    (folder / "patch.yaml").write_text(
        "id: needy\ntitle: t\nwhy: w\nupstream: {status: never}\ninert_when: never\nrequires: [pp-cpu-eager]\n"
        "edits: [{id: a, op: before, body: body.pyfrag, vllm: '>=0.30', module: vllm.x, symbol: f, find: y}]\n"
    )
    request = request_for(tmp_path, BASE + "patches: [needy]\n")
    assert messages(request, "patches") == [
        "reject: the patch needy requires pp-cpu-eager, which the layout does not name"
    ]


def test_a_patch_that_fits_is_accepted(tmp_path: Path):
    request = request_for(tmp_path, GLM + "patches: [pp-index-transport]\n")
    assert messages(request, "patches") == []
    overlaid = [mount.target for mount in request.deployment.mounts if mount.purpose == "overlay"]
    assert any(target.endswith("/vllm/_overlay") for target in overlaid)
    assert any(target.endswith("/models/deepseek_v2.py") for target in overlaid)


def test_a_waiver_with_a_typo_waives_nothing_and_is_refused(tmp_path: Path):
    (finding,) = findings(request_for(tmp_path, BASE + "allow: [unverified-p]\n"), "waivers")
    assert (finding.verdict, finding.fix) == ("reject", "did you mean unverified-pp?")


@pytest.mark.parametrize("waiver", ["unverified-pp", "trust-remote-code"])
def test_a_known_waiver_is_accepted(tmp_path: Path, waiver: str):
    assert findings(request_for(tmp_path, BASE + f"allow: [{waiver}]\n"), "waivers") == []


def test_a_rejected_layout_does_not_start(cli: Cli, tmp_path: Path):
    request = request_for(tmp_path, BASE + "status: rejected\nmissing_proof: it loops\n")
    assert messages(request, "status") == ["reject: the layout demo is rejected: it loops"]
    result = cli("cmd", "demo", DEPLOY_PROJECT=str(tmp_path))
    assert (result.code, result.out) == (1, "")


def test_a_layout_in_testing_names_the_missing_proof_and_is_not_refused(tmp_path: Path):
    request = request_for(tmp_path, BASE + "missing_proof: a run on CUDA\n")
    assert messages(request, "status") == ["info: the layout demo is in testing; missing proof: a run on CUDA"]


def test_a_ready_layout_says_nothing(tmp_path: Path):
    assert messages(request_for(tmp_path, BASE + "status: ready\n"), "status") == []
