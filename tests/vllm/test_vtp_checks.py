"""Odd tensor parallelism below the engine: the real loaders cut where the plan says, and the numbers are the whole's.

The same scripts are the lower rungs of `deploy vtp qualify`. Each also runs the two slicings that are silently wrong.
"""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.campaign.vtp.checks import run_check
from tests.unit.helpers import ROOT
from tests.unit.vtp.vtp_samples import FLASH, plan

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.vllm

PATCH = ROOT / "patches/virtual-tp"


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    return run_check("loader-bytes", plan(FLASH, 3), None, PATCH, slicings=("padded", "stock", "blind"))


def test_the_real_loaders_cut_every_tensor_where_the_plan_says(loaded: dict[str, Any]):
    cuts = loaded["padded"]["cuts"]
    for shard in plan(FLASH, 3).shards:
        if shard.tensor == "head.weight":
            continue
        got = [(cut["start"], cut["start"] + cut["units"], cut["zero_tail"]) for cut in cuts[shard.tensor]]
        assert got == [(rank.start, rank.stop, rank.zero_tail) for rank in shard.ranks], shard.tensor
    assert cuts["experts.w13.weight (w3)"] == cuts["experts.w13.weight"]
    assert [cut["start"] for cut in cuts["experts.w2.weight"]] == [0, 352, 704]
    assert [cut["zero_tail"] for cut in cuts["experts.w2.weight"]] == [32, 32, 64]
    assert [cut["start"] for cut in cuts["experts.w2.scale"]] == [0, 22, 44]
    assert [cut["zero_tail"] for cut in cuts["experts.w2.scale"]] == [2, 2, 4]


def test_the_audit_is_content_with_the_padded_load(loaded: dict[str, Any]):
    assert loaded["padded"]["audit"] == ["", "", ""]


def test_stock_slicing_loads_and_the_audit_finds_it_on_every_rank(loaded: dict[str, Any]):
    cuts = loaded["stock"]["cuts"]
    assert [cut["units"] for cut in cuts["experts.w13.weight"]] == [682, 682, 682]
    assert [cut["start"] for cut in cuts["experts.w2.weight"]] == [0, 341, 682]
    assert [cut["start"] for cut in cuts["experts.w2.scale"]] == [0, 21, 42]
    assert all("audit of TP rank" in text for text in loaded["stock"]["audit"])


def test_unit_blind_slicing_loads_and_the_audit_finds_it_on_every_rank(loaded: dict[str, Any]):
    cuts = loaded["blind"]["cuts"]
    assert [cut["start"] for cut in cuts["experts.w13.weight"]] == [0, 704, 1408], "rows happen to be right"
    assert [cut["start"] for cut in cuts["experts.w2.weight"]] == [0, 384, 768]
    assert [cut["start"] for cut in cuts["experts.w2.scale"]] == [0, 24, 48]
    assert all("audit of TP rank" in text for text in loaded["blind"]["audit"])


def test_the_conversion_keeps_every_value_and_a_stale_tail_is_found(loaded: dict[str, Any]):
    conversion = loaded["padded"]["conversion"]
    assert conversion["values_kept"]
    assert "w2_weight_scale has other bits than zero in its padding" in conversion["stale_tail_found"]


def test_summed_ranks_compute_what_the_whole_experts_compute():
    found = run_check("moe-numerics", plan(FLASH, 3), None, PATCH)
    assert [row["tokens"] for row in found["rows"]] == [1, 8, 16, 64]
    for row in found["rows"]:
        assert row["padded"] < 1e-5 and row["padded_finite"]
        assert row["stock"] > 0.2 and row["blind"] > 0.2
    assert found["audit"]["padded"] == []
    assert found["audit"]["stock"] and found["audit"]["blind"]


def test_virtual_heads_are_not_zero_and_contribute_exactly_zero():
    found = run_check("attention-padding", plan(FLASH, 3), None, PATCH)
    for phase in ("prefill", "decode"):
        row = found[phase]
        assert row["virtual_heads_nonzero"], "zero queries do not give zero attention"
        assert row["virtual_groups_zero"] and row["contribution_zero"]
        assert row["real_heads_off_by"] <= 2**-7 and row["finite"]
        assert row["split"] <= 1.5 * row["single"]
