"""What a needle run asks: lengths on both sides of every edge, depths, and passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from shardwright.probes.client import Api
from shardwright.probes.edges import SHORTEST_PROMPT_TOKENS, Edges, both_sides, topk_warning
from shardwright.probes.needle.text import WordingName
from shardwright.probes.server import Server

Pass = Literal["cold", "warm", "concurrent", "thinking"]

ANSWER_TOKENS = 64
THINKING_TOKENS = 4096
FEWEST_THINKING_TOKENS = 512
QUICK_DEPTHS = (0, 50, 100)
FULL_DEPTHS = (0, 5, 25, 50, 75, 95, 100)
CONCURRENT = 8
_CONCURRENT_TOKENS = 8192
_QUICK_TOP_TOKENS = 8192
_RESIDUES = 4
_RUNGS = 6
_CALLS_TO_SIZE = 6


@dataclass(frozen=True)
class Cell:
    """One place in the map: prompt tokens, depth of the needle in percent of the text, and a seed for the words."""

    length: int
    depth: int
    seed: int


@dataclass(frozen=True)
class Trial:
    """One question about a cell. `warm` comes right after `cold`, with the same prompt and the same cache salt."""

    cell: Cell
    how: Pass

    @property
    def key(self) -> str:
        """Its name in records, such as 2049@50#1/cold."""
        return f"{self.cell.length}@{self.cell.depth}#{self.cell.seed}/{self.how}"


@dataclass(frozen=True)
class NeedlePlan:
    """Cells in the order in which they are asked. `deployment` is the digest of what was deployed, or empty."""

    cells: tuple[Cell, ...]
    edges: Edges
    api: Api = "chat"
    wording: WordingName = "access-code"
    answer_tokens: int = ANSWER_TOKENS
    thinking_cells: tuple[Cell, ...] = ()
    thinking_tokens: int = THINKING_TOKENS
    concurrent_cells: tuple[Cell, ...] = ()
    deployment: str = ""

    def trials(self) -> tuple[Trial, ...]:
        """Everything that is asked one at a time, in order."""
        one_by_one = [Trial(cell, how) for cell in self.cells for how in _COLD_AND_WARM]
        return (*one_by_one, *(Trial(cell, "thinking") for cell in self.thinking_cells))

    def concurrent_trials(self) -> tuple[Trial, ...]:
        """What is asked at a time, at the end."""
        return tuple(Trial(cell, "concurrent") for cell in self.concurrent_cells)

    def max_tokens(self, trial: Trial) -> int:
        """Room for the answer: what the pass needs, or what the longest sequence leaves."""
        wanted = self.thinking_tokens if trial.how == "thinking" else self.answer_tokens
        return wanted if self.edges.max_len is None else max(1, min(wanted, self.edges.max_len - trial.cell.length))

    def warning(self) -> str | None:
        """Why these lengths cannot show a fault of a sparse indexer, where that is so."""
        cells = (*self.cells, *self.thinking_cells, *self.concurrent_cells)
        return topk_warning("needle", (cell.length for cell in cells), self.edges.index_topk)

    def budget(self) -> str:
        """Requests and tokens, in a line."""
        trials = (*self.trials(), *self.concurrent_trials())
        prefill = sum(trial.cell.length for trial in trials if trial.how != "warm")
        answers = sum(self.max_tokens(trial) for trial in trials)
        prompts = len({trial.cell for trial in trials})
        return (
            f"needle: {len(trials)} requests in {len(self.cells)} cells, {prefill} prompt tokens to read cold, at most "
            f"{answers} tokens of answers, about {prompts * _CALLS_TO_SIZE} calls of /tokenize"
        )

    def id(self, server: Server) -> str:
        """Names this plan on this boot of this server."""
        import hashlib
        import json

        content = asdict(self) | {"server": server.record()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


_COLD_AND_WARM: tuple[Pass, ...] = ("cold", "warm")


def quick_plan(
    edges: Edges, *, api: Api = "chat", wording: WordingName = "access-code", deployment: str = "", seed: int = 1
) -> NeedlePlan:
    """Three lengths (around index_topk where there is one), three depths, cold and warm; then eight at a time."""
    lengths = quick_lengths(edges)
    return own_plan(edges, lengths, QUICK_DEPTHS, api=api, wording=wording, deployment=deployment, seeds=(seed,))


def full_plan(
    edges: Edges, *, api: Api = "chat", wording: WordingName = "access-code", deployment: str = "", seed: int = 1
) -> NeedlePlan:
    """Six rungs up to the longest prompt; both sides of every edge; four residues; thinking; eight at a time."""
    longest = edges.longest_prompt(ANSWER_TOKENS)
    rungs = ladder(SHORTEST_PROMPT_TOKENS, longest, _RUNGS)
    cells = {Cell(length, depth, seed) for length in rungs for depth in FULL_DEPTHS}
    sides = both_sides((*edges.inner(), longest), SHORTEST_PROMPT_TOKENS, longest + 1)
    cells |= {Cell(length, depth, seed) for length in sides for depth in QUICK_DEPTHS}
    deep = min(longest, _QUICK_TOP_TOKENS)
    cells |= {Cell(deep - side, 50, seed) for side in range(_RESIDUES)}
    thinking = tuple(Cell(length, 50, seed) for length in rungs if api == "chat" and _room_to_think(edges, length))
    return NeedlePlan(
        cells=tuple(sorted(cells, key=lambda cell: (cell.length, cell.depth))),
        edges=edges,
        api=api,
        wording=wording,
        thinking_cells=thinking,
        concurrent_cells=_concurrent(min(longest, _CONCURRENT_TOKENS), seed),
        deployment=deployment,
    )


def own_plan(
    edges: Edges,
    lengths: Sequence[int],
    depths: Sequence[int],
    *,
    api: Api = "chat",
    wording: WordingName = "access-code",
    deployment: str = "",
    seeds: Sequence[int] = (1,),
    thinking: bool = False,
) -> NeedlePlan:
    """Every length at every depth with every seed, cold and warm, then eight at a time of the shortest length."""
    cells = tuple(Cell(length, depth, seed) for length in sorted(lengths) for depth in depths for seed in seeds)
    wants_thinking = thinking and api == "chat"
    return NeedlePlan(
        cells=cells,
        edges=edges,
        api=api,
        wording=wording,
        thinking_cells=tuple(c for c in cells if wants_thinking and _room_to_think(edges, c.length)),
        concurrent_cells=_concurrent(min(lengths), seeds[0]),
        deployment=deployment,
    )


def quick_lengths(edges: Edges) -> tuple[int, ...]:
    """Three lengths: both sides of index_topk and a longer one; without it the first edge, the middle and the top."""
    longest = edges.longest_prompt(ANSWER_TOKENS)
    topk = edges.index_topk
    if topk is not None and SHORTEST_PROMPT_TOKENS < topk < longest:
        top = min(longest, max(_QUICK_TOP_TOKENS, 4 * topk))
        return tuple(sorted({topk - 1, topk + 1, top}))
    top = min(longest, _QUICK_TOP_TOKENS)
    low = min(max(SHORTEST_PROMPT_TOKENS, edges.inner()[0] + 1 if edges.inner() else 256), top)
    return tuple(sorted({low, round(math.sqrt(low * top)), top}))


def ladder(shortest: int, longest: int, rungs: int) -> tuple[int, ...]:
    """Lengths from shortest to longest with equal ratios between them."""
    if longest <= shortest:
        return (longest,)
    ratio = (longest / shortest) ** (1 / (rungs - 1))
    return tuple(sorted({min(longest, round(shortest * ratio**rung)) for rung in range(rungs)}))


def _concurrent(length: int, seed: int) -> tuple[Cell, ...]:
    depths = [round(100 * place / (CONCURRENT - 1)) for place in range(CONCURRENT)]
    return tuple(Cell(length, depth, seed) for depth in depths)


def _room_to_think(edges: Edges, length: int) -> bool:
    return edges.max_len is None or edges.max_len - length >= FEWEST_THINKING_TOKENS
