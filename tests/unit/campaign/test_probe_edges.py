"""The lengths at which a layout's server changes its way of working."""

from __future__ import annotations

import pytest

from shardwright.campaign.probe_edges import edges_of
from shardwright.campaign.request import prepare
from shardwright.probes.edges import Edges


@pytest.mark.parametrize(
    "layout, sets, expected",
    [
        ("tiny-cpu", (), Edges(block=128, chunk=2048, max_len=2048)),
        ("tiny-cpu", ("serve.max_model_len=1024", "serve.block_size=32"), Edges(block=32, chunk=2048, max_len=1024)),
        ("glm53-tp4pp2", (), Edges(block=64, index_topk=2048, chunk=2048, max_len=524_288)),
    ],
)
def test_edges_come_from_the_layout_and_the_model(layout: str, sets: tuple[str, ...], expected: Edges) -> None:
    request = prepare(layout, {}, sets)
    assert edges_of(request.deployment, request.facts) == expected


def test_a_model_whose_pages_are_not_known_still_has_an_index_topk() -> None:
    request = prepare("dsv4flash-tp3-lucifer", {})
    assert edges_of(request.deployment, request.facts).index_topk == 512
