"""Bytes of one KV block on a stage, for any range of layers, in constant time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from shardwright.facts.model import IndexRule
from shardwright.plan.index_sharing import computes_own_index
from shardwright.plan.kv_pages import PageRule


class LayerPages:
    """The pages of all layers as prefix sums, grouped as the engine groups them.

    Layers that need the same slots are one group. A model that mixes full and sliding layers gets several groups that
    share one pool of blocks, and a block is as large as the largest group on the stage (vLLM kv_cache_utils.py,
    _get_kv_cache_groups_uniform_page_size and _get_kv_cache_bytes_per_block).
    """

    def __init__(
        self,
        rule: PageRule,
        num_layers: int,
        index_rule: IndexRule | None,
        *,
        draft_layers: int = 0,
        indexers_on_orphans: bool = False,
    ) -> None:
        """`draft_layers`: layers of the drafter on the last stage, each with an indexer of its own."""
        self.rule = rule
        self.num_layers = num_layers
        self.draft_layers = draft_layers
        self._flips = indexers_on_orphans
        full = [
            rule.indexer_bytes > 0 and (index_rule is None or computes_own_index(index_rule, layer))
            for layer in range(num_layers)
        ]
        self._indexers = _prefix(full)
        self._next_full = _next_full(full)
        self.groups = layer_groups(rule.sliding, num_layers)
        self._members = [_prefix([layer in set(group) for layer in range(num_layers)]) for group in self.groups]

    def orphans(self, start: int, end: int) -> int:
        """Layers of [start, end) before its first full layer."""
        return min(self._next_full[start], end) - start if self.rule.indexer_bytes else 0

    def indexers(self, start: int, end: int) -> int:
        """Indexers that a stage builds: full layers, drafter layers, and orphans made to compute."""
        count = self._indexers[end] - self._indexers[start]
        if self.rule.indexer_bytes and end == self.num_layers:
            count += self.draft_layers
        return count + (self.orphans(start, end) if self._flips else 0)

    def attention_layers(self, start: int, end: int) -> int:
        """Layers with a KV cache on the stage, those of the drafter included."""
        return end - start + (self.draft_layers if end == self.num_layers else 0)

    def block_bytes(self, start: int, end: int) -> int:
        """Bytes of one block on the stage [start, end)."""
        if len(self._members) == 1:
            layers = self.attention_layers(start, end)
        else:
            layers = max(member[end] - member[start] for member in self._members)
        token = layers * self.rule.layer_bytes + self.indexers(start, end) * self.rule.indexer_bytes
        return token * self.rule.block_tokens

    def request_blocks(self, tokens: int, *, context_parallel: int = 1, in_flight_tokens: int = 0) -> int:
        """Blocks that one request of that many tokens holds, over all groups.

        A sliding group holds the window and what is in flight, and one block more, since a window need not begin at
        the beginning of a block.
        """
        size, blocks = self.rule.block_tokens, 0
        for first, *_ in self.groups:
            if self.rule.sliding and self.rule.sliding[first]:
                blocks += _ceil(min(self.rule.window - 1 + in_flight_tokens, tokens), size) + 1
            else:
                blocks += _ceil(_ceil(tokens, context_parallel), size)
        return blocks


def layer_groups(sliding: Sequence[bool], num_layers: int) -> tuple[tuple[int, ...], ...]:
    """Layers by cache group. Groups of a mixed model are as many layers as its rarer kind has.

    Where the kinds are nearly even (less than 1.5 times), the commoner one sets the size instead. Layers of a group are
    taken with a stride, so that every pipeline stage holds some of each.
    """
    kinds = [
        tuple(layer for layer in range(num_layers) if bool(sliding and sliding[layer]) is kind)
        for kind in (False, True)
    ]
    present = [kind for kind in kinds if kind]
    if len(present) < 2:
        return tuple(present)
    fewest, most = sorted(len(kind) for kind in present)
    size = most if most < fewest * 1.5 else fewest
    groups: list[tuple[int, ...]] = []
    for kind in present:
        count = _ceil(len(kind), size)
        groups += [kind[index::count] for index in range(count)]
    return tuple(groups)


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def _prefix(flags: Sequence[bool]) -> list[int]:
    return [0, *accumulate(flags)]


def _next_full(full: Sequence[bool]) -> list[int]:
    """For every layer the first one from it on that is full; the number of layers where none is."""
    found, following = [], len(full)
    for layer in reversed(range(len(full))):
        following = layer if full[layer] else following
        found.append(following)
    return found[::-1]
