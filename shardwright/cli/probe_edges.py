"""Edges of the server that a probe verb asks: from the layout where there is one, from the server, from options."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from shardwright.cli.probe_common import Asked
from shardwright.probes.edges import Edges

Command = TypeVar("Command", bound=Callable[..., Any])


def topk_option(command: Command) -> Command:
    """Add `--index-topk N`."""
    return click.option(
        "--index-topk",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens that the model's sparse indexer keeps; else as the layout's model says.",
    )(command)


def known_edges(asked: Asked, index_topk: int | None) -> Edges:
    """What the layout says, with the running server's own limit before the layout's. No layout: the server alone."""
    edges = Edges()
    if asked.layout is not None:
        from shardwright.campaign.probe_edges import edges_of
        from shardwright.campaign.request import prepare

        request = prepare(asked.layout, os.environ, asked.sets)
        edges = edges_of(request.deployment, request.facts)
    longest = asked.server.capabilities.max_model_len
    return replace(edges, max_len=longest or edges.max_len, index_topk=index_topk or edges.index_topk)
