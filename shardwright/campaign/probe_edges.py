"""The lengths at which one deployment changes its way of working, for the probes that ask on both sides of them."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.plan.kv_pages import UnknownPagesError
from shardwright.probes.edges import Edges
from shardwright.resolve.capacity import capacity_of, max_model_len
from shardwright.resolve.deployment import Deployment


def edges_of(deployment: Deployment, facts: Facts) -> Edges:
    """Block, index_topk, window, chunk and longest sequence, in tokens, as far as layout and model facts say them."""
    model = facts.model
    attention = model.attention if model is not None else None
    try:
        capacity = capacity_of(deployment, facts)
        block, chunk = capacity.pages.rule.block_tokens, capacity.batched_tokens
    except UnknownPagesError:
        block, chunk = None, None
    return Edges(
        block=block,
        index_topk=model.index_topk if model is not None else None,
        window=(attention.window or None) if attention is not None else None,
        chunk=chunk,
        max_len=max_model_len(deployment, facts),
    )
