"""What a model thinks of every token of a prompt, and what it says next: the material of `parity` and `repeat`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.probes.client import GREEDY, Answer, Request, complete
from shardwright.probes.journal import Record
from shardwright.probes.server import Server
from shardwright.probes.wire import TransportError

Top = Mapping[int, float]
"""Token id to logprob (nats), for the likeliest tokens at one position."""

_DIGITS = 5
_ID_MARK = "token_id:"
_NO_JSON_FLOAT = "JSON compliant"
_ABOVE_ZERO = 1e-3


@dataclass(frozen=True)
class Score:
    """One answer. `prompt_logprobs[i]` and `prompt_top[i]` belong to prompt token i + 1; the first has no logprob.

    `ids`, `logprobs` and `top` are the greedy answer, token by token. All logprobs are natural logarithms.
    """

    prompt_logprobs: tuple[float, ...]
    prompt_top: tuple[Top, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[Top, ...]

    def broken(self) -> str:
        """Why these are no logprobs, or an empty string: not finite, or above zero."""
        for name, values in (("prompt", self.prompt_logprobs), ("answer", self.logprobs)):
            for place, value in enumerate(values):
                if not math.isfinite(value) or value > _ABOVE_ZERO:
                    return f"logprob {value!r} at token {place} of the {name}"
        return ""

    def fields(self, *, with_top: bool = True) -> Record:
        """Plain data for a record; logprobs to five digits, tops as id, logprob, id, logprob."""
        record: Record = {
            "prompt_logprobs": _rounded(self.prompt_logprobs),
            "ids": list(self.ids),
            "logprobs": _rounded(self.logprobs),
            "top": [_flat(top) for top in self.top],
        }
        return record | ({"prompt_top": [_flat(top) for top in self.prompt_top]} if with_top else {})


@dataclass(frozen=True)
class ScoreOutcome:
    """The class of a trial of `parity` or `repeat`, and in a few words the ground for it."""

    outcome: str
    detail: str


def score_of(record: Mapping[str, Any]) -> Score:
    """The score in a record that `fields` wrote."""
    return Score(
        tuple(record["prompt_logprobs"]),
        tuple(_unflat(top) for top in record.get("prompt_top", ())),
        tuple(record["ids"]),
        tuple(record["logprobs"]),
        tuple(_unflat(top) for top in record["top"]),
    )


def ask_score(
    server: Server,
    prompt_ids: Sequence[int],
    *,
    top: int,
    answer_tokens: int,
    prompt_logprobs: bool,
    cache_salt: str | None = None,
) -> Score:
    """Score a prompt and continue it greedily for exactly `answer_tokens`, without a prefix cache.

    vLLM reads no prefix cache for a request with prompt logprobs; `cache_salt` sees to it where none are asked for.
    Raises TransportError, also where the server passes over `prompt_logprobs`.
    """
    capabilities = server.capabilities
    fields: dict[str, Any] = {"logprobs": top, "ignore_eos": True, "return_tokens_as_token_ids": True}
    if prompt_logprobs:
        fields["prompt_logprobs"] = top
    if cache_salt is not None and capabilities.cache_salt:
        fields["cache_salt"] = cache_salt
    request = Request(
        server.model,
        "",
        "completions",
        answer_tokens,
        GREEDY,
        extensions=capabilities.extensions,
        prompt_ids=tuple(prompt_ids),
        fields=fields,
    )
    score = read_score(complete(server.endpoint, request), prompt_ids)
    if prompt_logprobs and len(score.prompt_logprobs) != len(prompt_ids) - 1:
        raise TransportError("protocol", "the server sent no prompt_logprobs")
    return score


def read_score(answer: Answer, prompt_ids: Sequence[int]) -> Score:
    """The score in a completion's reply. Raises TransportError where the reply does not fit the prompt."""
    choice = answer.reply["choices"][0]
    actual: list[float] = []
    tops: list[Top] = []
    scored = choice.get("prompt_logprobs")
    if scored is not None:
        if not isinstance(scored, list) or len(scored) != len(prompt_ids):
            raise TransportError("protocol", "prompt_logprobs do not have one entry for each prompt token")
        for token, entry in zip(prompt_ids[1:], scored[1:], strict=True):
            found = _prompt_entry(entry)
            if token not in found:
                raise TransportError("protocol", f"prompt_logprobs have no entry for the prompt's own token {token}")
            actual.append(found[token])
            tops.append(found)
    spoken = choice.get("logprobs") or {}
    logprobs = [_number(value) for value in spoken.get("token_logprobs") or ()]
    ids = choice.get("token_ids")
    ids = ids if isinstance(ids, list) else [_id(token) for token in spoken.get("tokens") or ()]
    said = [_answer_entry(entry) for entry in spoken.get("top_logprobs") or ()]
    if not (len(ids) == len(logprobs) == len(said)):
        raise TransportError("protocol", "the answer's tokens and logprobs differ in number")
    return Score(tuple(actual), tuple(tops), tuple(ids), tuple(logprobs), tuple(said))


def tells_of_nan(error: TransportError) -> bool:
    """Whether the server failed because a logprob was no number: JSON has no NaN, so it answers HTTP 500."""
    return _NO_JSON_FLOAT in error.detail


def _prompt_entry(entry: Any) -> dict[int, float]:
    if not isinstance(entry, dict):
        raise TransportError("protocol", "prompt_logprobs have a hole")
    return {int(token): _number((value or {}).get("logprob")) for token, value in entry.items()}


def _answer_entry(entry: Any) -> dict[int, float]:
    return {_id(token): _number(value) for token, value in entry.items()} if isinstance(entry, dict) else {}


def _id(token: Any) -> int:
    text = str(token).removeprefix(_ID_MARK)
    if not text.isdecimal():
        raise TransportError("protocol", "the server does not name tokens by id (return_tokens_as_token_ids)")
    return int(text)


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise TransportError("protocol", f"a logprob is {value!r}")


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, _DIGITS) for value in values]


def _flat(top: Top) -> list[float]:
    return [part for token, value in top.items() for part in (token, round(value, _DIGITS))]


def _unflat(flat: Sequence[float]) -> dict[int, float]:
    return {int(token): value for token, value in zip(flat[::2], flat[1::2], strict=True)}
