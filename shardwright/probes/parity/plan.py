"""What a recording for `parity` holds: which prompts, how long, and how each is asked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

from shardwright.errors import UsageError
from shardwright.probes.client import GREEDY
from shardwright.probes.edges import Edges, topk_warning
from shardwright.probes.server import Server

Round = Literal["alone", "loaded"]
"""`alone`: one request at a time; `loaded`: eight at a time. The two together are a server's noise."""

ROUNDS: tuple[Round, ...] = ("alone", "loaded")
LOADED = 8
_PAST_TOPK_TOKENS = 256


@dataclass(frozen=True)
class ParityPlan:
    """Prompt i has `lengths[i]` tokens and is continued greedily for `answer_tokens`; `top` logprobs at each position.

    `index_topk` splits positions; `deployment` is the digest of what was deployed, or empty.
    """

    lengths: tuple[int, ...]
    answer_tokens: int
    top: int = 20
    index_topk: int | None = None
    seed: int = 1
    deployment: str = ""

    def keys(self, how: Round) -> tuple[str, ...]:
        """Trials of a round by name: p0/alone, p1/alone, …"""
        return tuple(f"p{number}/{how}" for number in range(len(self.lengths)))

    def warning(self) -> str | None:
        """Why these prompts cannot show a fault of a sparse indexer, where that is so."""
        return topk_warning("parity", self.lengths, self.index_topk)

    def budget(self) -> str:
        """Requests and tokens, in a line."""
        requests = len(self.lengths) * len(ROUNDS)
        return (
            f"parity: {requests} requests ({len(self.lengths)} prompts, one at a time and {LOADED} at a time), "
            f"{sum(self.lengths) * len(ROUNDS)} prompt tokens scored, {requests * self.answer_tokens} tokens of answers"
        )

    def method(self) -> str:
        """Names what is asked and how, whoever is asked: recordings of two methods cannot be compared."""
        content = asdict(replace(self, deployment="")) | {"sampler": GREEDY.fields()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def id(self, server: Server) -> str:
        """Names this plan on this boot of this server."""
        content = asdict(self) | {"server": server.record()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def quick_plan(edges: Edges, *, deployment: str = "") -> ParityPlan:
    """Four prompts of 256 tokens, and one past index_topk where there is one."""
    return _plan(edges, count=4, tokens=256, past_topk=1, answer_tokens=32, deployment=deployment)


def full_plan(edges: Edges, *, deployment: str = "") -> ParityPlan:
    """Sixteen prompts of 512 tokens, and four past index_topk where there is one."""
    return _plan(edges, count=16, tokens=512, past_topk=4, answer_tokens=128, deployment=deployment)


def _plan(edges: Edges, *, count: int, tokens: int, past_topk: int, answer_tokens: int, deployment: str) -> ParityPlan:
    longest = edges.longest_prompt(answer_tokens)
    if longest < 2:
        raise UsageError(f"a server of at most {edges.max_len} tokens leaves no room for a prompt")
    lengths = [min(tokens, longest)] * count
    if edges.index_topk is not None:
        beyond = min(longest, edges.index_topk + _PAST_TOPK_TOKENS)
        if beyond > tokens:
            lengths += [beyond] * past_topk
    return ParityPlan(tuple(lengths), answer_tokens, index_topk=edges.index_topk, deployment=deployment)
