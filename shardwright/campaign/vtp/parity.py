"""Greedy answers of a running server with their logprobs: recorded on one TP, compared on another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError, ExitCode
from shardwright.probes.metrics import ACCEPTED, DRAFT_TOKENS, Metrics, delta
from shardwright.probes.wire import Endpoint, TransportError, post_json

FIRST_TOKENS = 8
MAX_TOKENS = 64
REPEATS = 10
_PROMPTS = (
    "The three states of matter that everyone learns first are",
    "def fibonacci(n: int) -> int:\n    ",
    "Water boils at 100 degrees Celsius at sea level, but on a high mountain",
    "List the planets of the solar system in order of their distance from the sun:",
    " ".join(f"line {number}: the value of item {number} is {number * 7 % 100}." for number in range(120)),
)


class Greedy(Struct, frozen=True):
    """One greedy answer: its tokens as text and their logprobs."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


class Recording(Struct, frozen=True):
    """The answers of one server to the fixed prompts. `tp` and `vllm` are what its layout says."""

    layout: str
    tp: int
    vllm: str
    speculative: str
    answers: tuple[Greedy, ...]


def record(endpoint: Endpoint, model: str, layout: str, tp: int, vllm: str, speculative: str) -> Recording:
    """Ask the fixed prompts at temperature 0, one after the other. DeployError where no logprobs come back."""
    answers = tuple(_ask(endpoint, model, prompt) for prompt in _PROMPTS)
    return Recording(layout, tp, vllm, speculative, answers)


def write_recording(file: Path, recording: Recording) -> None:
    write_file(file, msgspec.json.format(msgspec.json.encode(recording)) + b"\n")


def read_recording(file: Path) -> Recording:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Recording)
    except (OSError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DeployError(
            f"{file} is not a recording: {reason}", fix="deploy vtp qualify LAYOUT --record FILE on the other TP"
        ) from None


def compare(reference: Recording, got: Recording, tolerance: float) -> tuple[list[str], str]:
    """Faults, and one line with the numbers: first tokens equal, logprobs within `tolerance` on shared prefixes."""
    faults = []
    if reference.vllm != got.vllm:
        faults.append(f"recorded on vLLM {reference.vllm}, compared on {got.vllm}")
    if len(reference.answers) != len(got.answers):
        return [*faults, "another set of prompts"], ""
    shortest, largest = MAX_TOKENS, 0.0
    for number, (one, other) in enumerate(zip(reference.answers, got.answers, strict=True), start=1):
        shared = shared_prefix(one.tokens, other.tokens)
        shortest = min(shortest, shared)
        wanted = min(FIRST_TOKENS, len(one.tokens))
        if shared < wanted:
            faults.append(f"prompt {number}: only {shared} of the first {wanted} tokens agree")
        pairs = zip(one.logprobs[:shared], other.logprobs[:shared], strict=True)
        differences = [abs(a - b) for a, b in pairs]
        largest = max([largest, *differences])
        # Not `>`: NaN is more than any tolerance.
        worst = next((difference for difference in differences if not difference <= tolerance), None)
        if worst is not None:
            faults.append(f"prompt {number}: a logprob differs by {worst:.3f}, more than {tolerance:g}")
    return faults, f"shortest shared prefix {shortest} tokens, largest logprob difference {largest:.4f}"


def repeats_agree(endpoint: Endpoint, model: str) -> tuple[list[str], str]:
    """Ask one prompt again and again: every answer must be the first one's tokens and logprobs."""
    first = _ask(endpoint, model, _PROMPTS[0])
    for number in range(2, REPEATS + 1):
        again = _ask(endpoint, model, _PROMPTS[0])
        if again != first:
            return [f"answer {number} of {REPEATS} differs from the first"], ""
    return [], f"{REPEATS} answers, bit-equal"


class Drafts(Struct, frozen=True):
    """Draft tokens that a server counted between two readings; None where it reports none."""

    accepted: float | None
    drafted: float | None


def final_tokens_agree(reference: Recording, got: Recording, drafts: Drafts) -> tuple[list[str], str]:
    """Faults of a server with MTP on: its tokens must be those without it, and drafts must have been accepted."""
    faults, numbers = compare(reference, got, float("inf"))
    if drafts.accepted is None:
        faults.append("the server reports no accepted draft tokens")
    elif drafts.accepted <= 0:
        faults.append("not one draft token was accepted")
    of = f" of {drafts.drafted:.0f}" if drafts.drafted else ""
    return faults, f"{numbers}; {drafts.accepted or 0:.0f}{of} draft tokens accepted"


def drafts_between(before: Metrics | None, after: Metrics | None) -> Drafts:
    """Raises CounterResetError where the server was started anew in between."""
    return Drafts(delta(before, after, ACCEPTED), delta(before, after, DRAFT_TOKENS))


def tokens_per_second(endpoint: Endpoint, model: str) -> float:
    """Single-stream decode rate over the fixed prompts, prompt processing included."""
    started = time.perf_counter()
    count = sum(len(_ask(endpoint, model, prompt).tokens) for prompt in _PROMPTS)
    return count / (time.perf_counter() - started)


def shared_prefix(one: Sequence[str], other: Sequence[str]) -> int:
    """How many tokens two answers have in common before they part."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def _ask(endpoint: Endpoint, model: str, prompt: str) -> Greedy:
    body = {"model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "seed": 0, "logprobs": 1}
    reply = post_json(endpoint, "/v1/completions", body)
    if reply.status != 200:
        raise reply.error()
    content: Any = reply.json()
    try:
        logprobs = content["choices"][0]["logprobs"]
        tokens, values = tuple(map(str, logprobs["tokens"])), tuple(map(float, logprobs["token_logprobs"]))
    except (KeyError, IndexError, TypeError, ValueError):
        raise TransportError("protocol", "the answer carries no logprobs") from None
    if not tokens or len(tokens) != len(values):
        raise DeployError("the server answered without a token", code=ExitCode.HARNESS)
    return Greedy(tokens, values)
