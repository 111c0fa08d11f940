"""`virtual-tp`: what an odd TP needs, each need once met and once not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardwright.campaign.request import Request, prepare
from shardwright.facts.virtual_tp import FILTER_METHOD, has_tactic_filter
from shardwright.gates.finding import Finding
from tests.unit.helpers import ROOT, findings, project_at, write_layout
from tests.unit.vtp.vtp_samples import FLASH, plan

LAYOUT = (ROOT / "configs/layouts/dsv4flash-tp3-lucifer.yaml").read_text()
AUTOTUNE_OFF = "  kernel_config: {enable_flashinfer_autotune: false}\n"


def request(root: Path, *changes: tuple[str, str], config: Mapping[str, Any] | None = None, **environ: str) -> Request:
    text = LAYOUT.replace("name: dsv4flash-tp3-lucifer", "name: demo")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    if config is not None:
        folder = root / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        text = text.replace("path: /models/DeepSeek-V4-Flash-tp3", f"path: {folder}")
    write_layout(root, text)
    return prepare("demo", environ, project=project_at(root))


def judged(root: Path, *changes: tuple[str, str], config: Mapping[str, Any] | None = None, **environ: str):
    return findings(request(root, *changes, config=config, **environ), "virtual-tp")


def refusals(found: list[Finding]) -> list[str]:
    return [finding.message for finding in found if finding.verdict == "reject"]


def sidecar(tp: int, **changes: object) -> dict[str, Any]:
    made = plan(FLASH, tp)
    config = {**FLASH, "virtual_tp": {**made.sidecar_entry(), "checkpoint": "/models/DeepSeek-V4-Flash"}}
    for axis, key in (
        ("attention_heads", "num_attention_heads"),
        ("output_groups", "o_groups"),
        ("routed_intermediate", "moe_intermediate_size"),
    ):
        config[key] = made.axes[axis].virtual
    return {**config, **changes}


def test_the_shipped_layout_is_accepted_and_says_what_runs_on_sm120(tmp_path: Path):
    found = judged(tmp_path)
    assert refusals(found) == []
    (finding,) = found
    assert finding.verdict == "info"
    assert "MXFP4 experts with MXFP8 activations" in finding.message


def test_no_other_gate_refuses_the_shipped_layout(tmp_path: Path):
    assert not request(tmp_path).assessment.refused


def test_the_checkpoint_itself_is_refused_with_the_command_that_pads_it(tmp_path: Path):
    found = judged(tmp_path, ("facts: deepseek-v4-flash-tp3", "facts: deepseek-v4-flash"))
    assert ["needs a padded model folder" in text for text in refusals(found)] == [True]
    assert "deploy vtp sidecar" in found[0].fix


def test_a_padded_folder_without_the_patch_is_refused(tmp_path: Path):
    found = judged(tmp_path, ("patches: [virtual-tp]", "patches: []"), config=sidecar(3))
    assert "does not name the patch" in refusals(found)[0]


def test_a_folder_for_another_tp_is_refused(tmp_path: Path):
    assert any("written for TP=3, but the layout says TP=2" in text for text in refusals(judged(tmp_path, TP_SIZE="2")))


def test_a_padded_vocabulary_is_refused(tmp_path: Path):
    assert any(
        "vocab_size was padded" in text for text in refusals(judged(tmp_path, config=sidecar(3, vocab_size=129408)))
    )


def test_links_that_lead_nowhere_in_the_container_are_refused(tmp_path: Path):
    mounts = "mounts: [{source: /models/DeepSeek-V4-Flash, target: /models/DeepSeek-V4-Flash}]"
    for other in ("mounts: []", "mounts: [{source: /models/DeepSeek-V4-Flash, target: /weights}]"):
        assert any("links of the model folder" in text for text in refusals(judged(tmp_path, (mounts, other))))


def test_expert_parallelism_is_refused(tmp_path: Path):
    found = judged(tmp_path, ("enable_expert_parallel: false", "enable_expert_parallel: true"))
    assert "expert parallelism is on" in refusals(found)


def test_data_parallelism_is_refused(tmp_path: Path):
    found = judged(tmp_path, (AUTOTUNE_OFF, AUTOTUNE_OFF + "  data_parallel_size: 2\n"))
    assert any("--data-parallel-size 2" in text for text in refusals(found))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("attention_backend: FLASHINFER_MLA_SPARSE_DSV4", "attention_backend: FLASHMLA_SPARSE_DSV4"),
        ("moe_backend: flashinfer_cutlass", "moe_backend: marlin"),
        ("moe_backend: flashinfer_cutlass", "moe_backend: deep_gemm_mega_moe"),
        ("  moe_backend: flashinfer_cutlass\n", ""),
        ('compute_capability: "12.0"', 'compute_capability: "10.0"'),
    ],
)
def test_another_combination_is_refused(tmp_path: Path, old: str, new: str):
    assert any("not a combination" in text for text in refusals(judged(tmp_path, (old, new))))


def test_cards_that_nobody_named_are_unknown(tmp_path: Path):
    start, end = LAYOUT.index("hardware:"), LAYOUT.index("model:")
    assert "unknown" in [finding.verdict for finding in judged(tmp_path, (LAYOUT[start:end], ""))]


def test_ranks_without_real_work_are_refused_unless_waived(tmp_path: Path):
    five = ("{tensor: 3, pipeline: 1}", "{tensor: 5, pipeline: 1}")
    found = judged(tmp_path, five, config=sidecar(5))
    assert refusals(found) == ["TP=5 leaves no real attention head on rank 4"]
    (tmp_path / "waived").mkdir()
    waived = ("patches: [virtual-tp]", "patches: [virtual-tp]\nallow: [idle-ranks]")
    found = judged(tmp_path / "waived", five, waived, config=sidecar(5))
    assert refusals(found) == []
    assert "TP=5 leaves no real attention head on rank 4" in [f.message for f in found if f.verdict == "warn"]


def test_weights_with_the_kernels_padding_must_fit(tmp_path: Path):
    found = judged(tmp_path, ("memory_gib: 94.5", "memory_gib: 59"))
    assert any("GiB of weights with the kernel's padding" in text for text in refusals(found))


def test_a_plan_that_is_not_ours_is_refused(tmp_path: Path):
    config = sidecar(3)
    config["virtual_tp"]["axes"]["shared_intermediate"] = [2048, 2112]
    assert any("is not the one" in text for text in refusals(judged(tmp_path, config=config)))


SM90 = (
    ('compute_capability: "12.0"', 'compute_capability: "9.0"'),
    ("attention_backend: FLASHINFER_MLA_SPARSE_DSV4", "attention_backend: FLASHMLA_SPARSE_DSV4"),
)


def test_autotuning_at_width_768_is_refused_on_sm90_without_the_filter(tmp_path: Path):
    found = judged(tmp_path, *SM90, (AUTOTUNE_OFF, ""))
    assert ["768 is no multiple of 512" in text for text in refusals(found)] == [True]


def test_autotuning_switched_off_is_accepted_on_sm90(tmp_path: Path):
    assert refusals(judged(tmp_path, *SM90)) == []
    (tmp_path / "flag").mkdir()
    flag = (AUTOTUNE_OFF, "  enable_flashinfer_autotune: false\n")
    assert refusals(judged(tmp_path / "flag", *SM90, flag)) == []


def test_a_width_that_is_a_multiple_of_the_tile_may_be_tuned(tmp_path: Path):
    five = ("{tensor: 3, pipeline: 1}", "{tensor: 5, pipeline: 1}")
    waived = ("patches: [virtual-tp]", "patches: [virtual-tp]\nallow: [idle-ranks]")
    assert refusals(judged(tmp_path, *SM90, (AUTOTUNE_OFF, ""), five, waived, config=sidecar(5))) == []


def test_autotuning_on_sm120_warns_where_the_filter_was_not_seen(tmp_path: Path):
    found = judged(tmp_path, (AUTOTUNE_OFF, ""))
    assert refusals(found) == []
    (warning,) = [finding for finding in found if finding.verdict == "warn"]
    assert "read past the scale tensor" in warning.why and "pin the FlashInfer version" in warning.fix


class Files:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def read(self, relative: str) -> bytes:
        if self.text is None:
            raise FileNotFoundError(relative)
        return self.text.encode()


def test_the_filter_is_looked_for_in_the_engines_own_flashinfer():
    assert has_tactic_filter(Files(f"def {FILTER_METHOD}(self): ...")) is True
    assert has_tactic_filter(Files("def other(self): ...")) is False
    assert has_tactic_filter(Files(None)) is None


def test_layouts_of_other_models_hear_nothing(tmp_path: Path):
    text = "schema: shardwright/v1\nname: demo\nextends: base/glm53-a100.yaml\n"
    write_layout(tmp_path, text)
    assert findings(prepare("demo", {}, project=project_at(tmp_path)), "virtual-tp") == []
