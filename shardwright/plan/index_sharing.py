"""Which layers compute their own sparse-attention index, and which stages start on a layer that does not."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.facts.model import IndexRule


def computes_own_index(rule: IndexRule, layer: int) -> bool:
    """Whether `layer` (counted from 0) runs its own indexer instead of reusing the rows of an earlier layer.

    The engine's rule, vLLM deepseek_v2.py and deepseek_v32/attention.py: a layer is shared when
    `max(layer - offset + 1, 0) % freq != 0`; a pattern, where given, marks shared layers with `S` instead.
    """
    if rule.types is not None:
        return layer >= len(rule.types) or rule.types[layer] == "full"
    if rule.pattern is not None:
        return layer >= len(rule.pattern) or rule.pattern[layer] != "S"
    return max(layer - rule.offset + 1, 0) % rule.freq == 0


def full_layers(rule: IndexRule, num_layers: int) -> tuple[int, ...]:
    """All layers that compute their own index, in order."""
    return tuple(layer for layer in range(num_layers) if computes_own_index(rule, layer))


def orphan_layers(rule: IndexRule, first_layer: int, end_layer: int) -> tuple[int, ...]:
    """The run of layers of a stage [first_layer, end_layer) before its first full layer.

    They read an index buffer that nothing has written on their stage in this pass. The first stage never has any,
    since layer 0 of every known rule is full.
    """
    orphans = []
    for layer in range(first_layer, end_layer):
        if computes_own_index(rule, layer):
            break
        orphans.append(layer)
    return tuple(orphans)


def nearest_aligned_split(rule: IndexRule, wanted: Sequence[int]) -> tuple[int, ...] | None:
    """The split without orphans whose boundaries lie nearest to those of `wanted`; None when there is none.

    `wanted` holds the layers per stage. The distance is the sum over boundaries of the layers that each moves; ties
    go to the lower boundaries. Exact, by dynamic programming over the full layers.
    """
    num_layers, stages = sum(wanted), len(wanted)
    cuts = full_layers(rule, num_layers)
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    boundary = 0
    for stage in range(stages - 1):
        boundary += wanted[stage]
        following: dict[int, tuple[int, tuple[int, ...]]] = {}
        for cut in cuts:
            options = [state for previous, state in best.items() if previous < cut]
            if options:
                distance, chosen = min(options)
                following[cut] = (distance + abs(cut - boundary), (*chosen, cut))
        best = following
    if not best:
        return None
    _, chosen = min(best.values())
    edges = (0, *chosen, num_layers)
    return tuple(edges[index + 1] - edges[index] for index in range(stages))
