"""Bytes of weights on one card of a stage."""

from __future__ import annotations

from itertools import accumulate

from shardwright.facts.weights import LayerBytes, WeightFacts


class StageWeights:
    """Weights per card for any range of layers: what is sharded divided by TP, and what every rank holds whole.

    The first stage has the embedding. The last has the head (a copy of the embedding where the two are tied and lie on
    different stages), the MTP layers where they draft, and under PP > 1 the drafter's copy of the embedding (vLLM
    deepseek_v32/nvidia/mtp.py, from 0.30).
    """

    def __init__(
        self, weights: WeightFacts, tensor: int, kv_heads: int, *, drafts: bool, offloaded_bytes: float = 0.0
    ) -> None:
        """`kv_heads` is 0 for a latent cache; `drafts` where the MTP layers are built.

        `offloaded_bytes` per card stay in host memory, as far as the layers go (vLLM model_executor/offloader/uva.py).
        """
        self._weights, self._tensor, self._drafts = weights, tensor, drafts
        self._offloaded_bytes = offloaded_bytes
        self._key_value_ways = min(tensor, kv_heads) if kv_heads else tensor
        self._sums = [0.0, *accumulate(map(self._on_card, weights.layers))]

    def stage_bytes(self, start: int, end: int) -> float:
        """Weights of [start, end) on one card, with what its place in the pipeline adds."""
        weights, tensor = self._weights, self._tensor
        first, last = start == 0, end == len(weights.layers)
        size = max(0.0, self._sums[end] - self._sums[start] - self._offloaded_bytes)
        if first:
            size += (weights.embedding + weights.other) / tensor
        if last:
            tied_apart = 0 if weights.head or first else weights.embedding
            size += (weights.head + tied_apart) / tensor
            if self._drafts:
                size += self._on_card(weights.mtp) + (0 if first else weights.embedding / tensor)
        return size

    def _on_card(self, layer: LayerBytes) -> float:
        return layer.sharded / self._tensor + layer.replicated + layer.key_value / self._key_value_ways
