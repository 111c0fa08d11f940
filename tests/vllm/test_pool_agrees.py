"""The planned KV pool against the real engine: its own grouping and page code, and what two starts log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.plan.kv_pages import PageRule
from shardwright.plan.layer_pages import LayerPages, layer_groups
from tests.deploy_cli import Deploy

pytestmark = pytest.mark.vllm

BLOCK, HEADS, DIM, WINDOW = 16, 4, 64, 512
LAYER_BYTES = HEADS * 2 * DIM * 2


def engine_specs(sliding: tuple[bool, ...]) -> dict[str, Any]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shape: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": DIM, "dtype": torch.bfloat16}
    return {
        str(layer): SlidingWindowSpec(**shape, sliding_window=WINDOW) if slides else FullAttentionSpec(**shape)
        for layer, slides in enumerate(sliding)
    }


def engine_groups(sliding: tuple[bool, ...]) -> list[Any]:
    from vllm.v1.core.kv_cache_utils import _get_kv_cache_groups_uniform_page_size

    return list(_get_kv_cache_groups_uniform_page_size(engine_specs(sliding)))


PATTERNS = st.lists(st.booleans(), min_size=2, max_size=40).map(tuple)


@settings(max_examples=200, deadline=None)
@given(PATTERNS)
def test_layers_are_grouped_as_the_engine_groups_them(sliding: tuple[bool, ...]) -> None:
    theirs = {tuple(int(name) for name in group.layer_names) for group in engine_groups(sliding)}
    assert set(layer_groups(sliding, len(sliding))) == theirs


@settings(max_examples=200, deadline=None)
@given(PATTERNS, st.data())
def test_a_block_of_a_stage_has_the_engines_size(sliding: tuple[bool, ...], data: st.DataObject) -> None:
    from vllm.v1.core.kv_cache_utils import _get_kv_cache_bytes_per_block, _project_kv_cache_groups_to_worker

    cut = data.draw(st.integers(1, len(sliding) - 1))
    specs, groups = engine_specs(sliding), engine_groups(sliding)
    pages = LayerPages(PageRule(LAYER_BYTES, 0, BLOCK, sliding, WINDOW), len(sliding), None)
    for start, end in pairwise((0, cut, len(sliding))):
        worker = {str(layer): specs[str(layer)] for layer in range(start, end)}
        projected = _project_kv_cache_groups_to_worker(groups, worker)
        assert pages.block_bytes(start, end) == _get_kv_cache_bytes_per_block(projected)


@pytest.mark.parametrize("content", [656, 352, None])
def test_a_latent_page_has_the_engines_size(content: int | None) -> None:
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    spec = MLAAttentionSpec(
        block_size=64, num_kv_heads=1, head_size=576, dtype=torch.bfloat16, state_content_bytes=content
    )
    assert spec.page_size_bytes == 64 * (content or 1152)


@pytest.fixture
def deploy(tmp_path: Path, free_port: int) -> Iterator[Deploy]:
    command = Deploy(tmp_path, PORT=str(free_port))
    yield command
    for layout in ("tiny-cpu", "tiny-cpu-pp2"):
        command("stop", layout)


@pytest.mark.parametrize(
    ("layout", "length", "stages"),
    # 2,000 is no multiple of the block of 128: the engine logs less than the blocks hold.
    [("tiny-cpu", 2048, 1), ("tiny-cpu-pp2", 2000, 2)],
)
def test_the_logged_pool_is_the_predicted_one(deploy: Deploy, layout: str, length: int, stages: int) -> None:
    words = ("--set", f"serve.max_model_len={length}")
    planned = deploy.ok("plan", layout, *words, "--json").data
    assert planned["basis"] == "given" and len(planned["stages"]) == stages
    if stages > 1:
        deploy.ok("patch", "build", layout)
    deploy.ok("start", layout, *words)
    deploy.ok("wait", layout)
    rows = {row["what"]: row for row in deploy.ok("plan", layout, *words, "--observed", "--json").data["rows"]}
    pool = rows["pool tokens"]
    assert pool["predicted"] == pool["actual"] > 0
    assert not any(row["finding"] for row in rows.values())
    assert all(rows[f"stage {stage} GiB"]["actual"] == 1.0 for stage in range(stages))
