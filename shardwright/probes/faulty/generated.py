"""An answer cut into tokens: limits, stop strings, engine steps and log-probabilities."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import log

from shardwright.probes.faulty.asked import Asked
from shardwright.probes.faulty.script import Call, Finish, Script
from shardwright.probes.faulty.tokenizer import VOCABULARY, pieces


@dataclass(frozen=True)
class Generated:
    """One finished choice. `reasoning` and `text` are pieces; the calls' own text is counted in `call_pieces`."""

    reasoning: tuple[str, ...]
    text: tuple[str, ...]
    calls: tuple[Call, ...]
    call_pieces: int
    finish: Finish | None
    stop_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Completion tokens; the token that ends the answer is not counted."""
        return len(self.reasoning) + len(self.text) + self.call_pieces

    @property
    def all_pieces(self) -> tuple[str, ...]:
        return (*self.reasoning, *self.text, *(piece for call in self.calls for piece in call_pieces(call)))


def call_pieces(call: Call) -> list[str]:
    """A call as the tokens that the model made for it: its name, then its arguments."""
    return [call.name, *pieces(call.arguments)]


def cut(script: Script, asked: Asked, room: int) -> Generated:
    """Cut to max_tokens, stop strings and the room left in the context (tokens)."""
    limit = min(room, asked.max_tokens if asked.max_tokens is not None else room)
    text, stop_reason = _stopped(script.text, asked)
    reasoning = pieces(script.reasoning)
    rest = pieces(text)
    if len(reasoning) >= limit:
        finish: Finish = "length" if rest or script.calls or len(reasoning) > limit else "stop"
        return Generated(tuple(reasoning[:limit]), (), (), 0, finish)
    left = limit - len(reasoning)
    if len(rest) > left or (asked.body.get("ignore_eos") and len(rest) == left):
        return Generated(tuple(reasoning), tuple(rest[:left]), (), 0, "length")
    left -= len(rest)
    calls: list[Call] = []
    used = 0
    for call in script.calls:
        parts = call_pieces(call)[: left - used]
        if parts:
            calls.append(Call(parts[0], "".join(parts[1:])))
        used += len(parts)
        if len(parts) < len(call_pieces(call)):
            return Generated(tuple(reasoning), tuple(rest), tuple(calls), used, "length")
    end: Finish = "tool_calls" if calls else "stop"
    return Generated(tuple(reasoning), tuple(rest), tuple(calls), used, end, stop_reason)


def _stopped(text: str, asked: Asked) -> tuple[str, str | None]:
    places = [(text.find(stop), stop) for stop in asked.stops if stop and stop in text]
    if not places:
        return text, None
    place, stop = min(places)
    return text[: place + (len(stop) if asked.body.get("include_stop_str_in_output") else 0)], stop


@dataclass(frozen=True)
class Scores:
    """The made-up model behind the log-probabilities: a geometric distribution over ranks, fixed by the context.

    `skew` of another value is another model; `jitter` (nats) is numerical noise, `noise` a draw of it.
    """

    skew: int = 0
    jitter: float = 0.0

    def at(
        self, before: tuple[int, ...], token: int, top: int, *, chosen: bool, noise: float = 0.0
    ) -> list[tuple[int, float, int]]:
        """`(id, logprob, rank)` of `token` first, then of the `top` best. The rank of a chosen token is 1."""
        seed = zlib.crc32(repr((self.skew, before)).encode())
        ratio = 0.15 + 0.5 * (seed % 1000) / 1000
        mine = 0 if chosen else self._rank(seed, token)
        shift = self.jitter * noise

        def logprob(rank: int) -> float:
            return min(-1e-6, log(1 - ratio) + rank * log(ratio) + shift * (1 if rank % 2 else -1) - abs(shift))

        ranks = [
            (token if rank == mine else (seed + 7919 * (rank + 1)) % VOCABULARY, logprob(rank), rank + 1)
            for rank in range(top)
        ]
        return [(token, logprob(mine), mine + 1), *ranks]

    @staticmethod
    def _rank(seed: int, token: int) -> int:
        draw = (zlib.crc32(f"{seed} {token}".encode()) % 1000) / 1000
        return 0 if draw < 0.7 else min(40, int(-log(max(1e-3, (1 - draw) / 0.3)) * 3))
