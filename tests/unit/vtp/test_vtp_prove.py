"""`deploy patch prove` of virtual-tp: the audit's line of every rank, of the target and of a draft, or no proof."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardwright.campaign.proof import _hits as hits_of
from shardwright.campaign.request import prepare
from shardwright.overlay.patch import read_patch
from shardwright.overlay.prove import CONDITIONS, expected_hits, hits_rung
from tests.unit.helpers import ROOT, project_at, write_layout
from tests.unit.vtp.vtp_samples import FLASH, fragment, plan

PATCH = read_patch(ROOT / "patches/virtual-tp")


def line(rank: int, role: str = "target") -> str:
    return f"(Worker_TP{rank}) INFO [overlay] virtual-tp audit role={role} pp_rank=0 tp_rank={rank} tp=3 model=X"


def verdicts(log: list[str], *conditions: str) -> list[tuple[str, str]]:
    rows = hits_rung(PATCH, expected_hits(PATCH, [[]], 3, conditions), log, "demo")
    return [(row.verdict, row.message) for row in rows]


def test_the_line_of_every_rank_proves_the_target():
    assert [verdict for verdict, _ in verdicts([line(rank) for rank in range(3)], "padded")] == ["OK", "OK"]


def test_no_line_is_a_failure_and_not_unknown():
    (target, message), (draft, _) = verdicts([], "padded")
    assert (target, draft) == ("NOT_LIVE", "OK")
    assert "of TP rank 0, 1, 2" in message


def test_one_silent_rank_is_a_failure_though_there_are_lines_enough():
    (target, message), _ = verdicts([line(0), line(1), line(1)], "padded")
    assert target == "NOT_LIVE" and message.endswith("of TP rank 2")


def test_a_served_draft_needs_its_own_lines():
    targets = [line(rank) for rank in range(3)]
    drafts = [line(rank, "draft") for rank in range(3)]
    assert [verdict for verdict, _ in verdicts(targets, *CONDITIONS)] == ["OK", "NOT_LIVE"]
    assert [verdict for verdict, _ in verdicts([*targets, *drafts], *CONDITIONS)] == ["OK", "OK"]


def test_without_a_plan_in_the_model_folder_no_line_is_asked_for():
    assert [verdict for verdict, _ in verdicts([])] == ["OK", "OK"]


def test_what_the_cpu_never_runs_is_not_required_there():
    cuda_only = {edit.id for edit in PATCH.edits_for("0.30.0") if edit.required_on == ("cuda",)}
    assert {"target-pad", "target-audit", "mtp-pad", "dspark-audit", "expert-count"} <= cuda_only
    assert PATCH.reach.models and len(PATCH.reach.drafts) == 2


def test_the_audit_says_what_the_proof_looks_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stub_vllm: Callable[[int, int], None]
):
    torch = pytest.importorskip("torch")
    module = fragment()
    stub_vllm(0, 3)
    config = SimpleNamespace(
        num_attention_heads=72,
        o_groups=9,
        moe_intermediate_size=2112,
        vocab_size=129280,
        virtual_tp=plan(FLASH, 3).sidecar_entry(),
    )
    model = torch.nn.Module()
    model.config, model.model, model.quant_config = config, torch.nn.Module(), None
    model.model.embed_tokens = torch.nn.Embedding(43136, 1)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.arange(43136).float()[:, None] % 13)
    source = torch.zeros(129280, 1)
    source[:43136] = model.model.embed_tokens.weight.detach()
    with caplog.at_level(logging.INFO, "vllm._overlay"):
        list(module.pad_stream(iter([("embed.weight", source)]), model))
        module.audit(model)
    rows = list(hits_rung(PATCH, expected_hits(PATCH, [[]], 1, ["padded"]), caplog.messages, "demo"))
    assert [row.verdict for row in rows] == ["OK", "OK"]


def command_verdicts(root: Path, log: list[str], *changes: tuple[str, str], **environ: str) -> list[str]:
    """What `deploy patch prove` says of the hits for the shipped layout, with this log."""
    text = (ROOT / "configs/layouts/dsv4flash-tp3-lucifer.yaml").read_text()
    for old, new in (("name: dsv4flash-tp3-lucifer", "name: demo"), *changes):
        assert old in text
        text = text.replace(old, new)
    write_layout(root, text)
    request = prepare("demo", environ, project=project_at(root))
    return [row.verdict for row in hits_of(request, log)]


def test_the_command_asks_for_the_target_and_where_mtp_is_on_for_the_draft(tmp_path: Path):
    targets = [line(rank) for rank in range(3)]
    drafts = [line(rank, "draft") for rank in range(3)]
    assert command_verdicts(tmp_path, []) == ["NOT_LIVE", "OK"]
    assert command_verdicts(tmp_path, targets) == ["OK", "OK"]
    assert command_verdicts(tmp_path, targets, SPEC_METHOD="mtp") == ["OK", "NOT_LIVE"]
    assert command_verdicts(tmp_path, [*targets, *drafts], SPEC_METHOD="mtp") == ["OK", "OK"]


def test_the_command_asks_for_nothing_where_the_model_folder_carries_no_plan(tmp_path: Path):
    checkpoint = ("facts: deepseek-v4-flash-tp3", "facts: deepseek-v4-flash")
    assert command_verdicts(tmp_path, [], checkpoint) == ["OK", "OK"]
