"""One streaming client for OpenAI-compatible servers: what is asked, what came back, and when.

Every sampler field is sent, since a model's own generation_config would otherwise fill the gaps. Text of `reasoning`
(or `reasoning_content`) counts as output: a loop there is a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwright.probes.answers import (
    Answer,
    Collected,
    ToolCall,
    Usage,
    choice_texts,
    choice_token_ids,
    first_choice,
    usage_of,
)
from shardwright.probes.sse import EventSplitter
from shardwright.probes.wire import ByteStream, Endpoint, TransportError, decode_json, error_message, post_json

__all__ = ["GREEDY", "Answer", "Request", "Sampler", "ToolCall", "Usage", "complete", "read_stream", "stream"]

Api = Literal["chat", "completions"]

PATHS: Mapping[str, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_EXTENSIONS = ("top_k", "min_p", "repetition_penalty", "return_token_ids")


@dataclass(frozen=True)
class Sampler:
    """All sampling fields of a request. The penalties are off: they would hide the loops that a probe looks for."""

    temperature: float
    top_p: float
    seed: int
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def fields(self) -> dict[str, float | int]:
        """Field names as the server knows them."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
        }


GREEDY = Sampler(temperature=0.0, top_p=1.0, seed=0)


@dataclass(frozen=True)
class Request:
    """One prompt with its sampler. `extensions` is off for servers that refuse fields outside the OpenAI interface.

    `messages` (chat) or `prompt_ids` (completions, token ids) take the place of `prompt` where they are given.
    `fields` are further fields of the body, sent as they are (tools, stop, cache_salt, logprobs, ...).
    """

    model: str
    prompt: str
    api: Api
    max_tokens: int
    sampler: Sampler
    extensions: bool = True
    messages: tuple[Mapping[str, Any], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return PATHS[self.api]

    def body(self, *, stream: bool) -> dict[str, Any]:
        """The JSON body."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": self.max_tokens, "n": 1, "stream": stream}
        if self.api == "chat":
            body["messages"] = list(self.messages) or [{"role": "user", "content": self.prompt}]
        else:
            body["prompt"] = list(self.prompt_ids) or self.prompt
        body.update(self.sampler.fields(), return_token_ids=True)
        if stream:
            body["stream_options"] = {"include_usage": True}
        if not self.extensions:
            for name in _EXTENSIONS:
                del body[name]
        return {**body, **self.fields}


def complete(endpoint: Endpoint, request: Request) -> Answer:
    """The answer in one piece. Raises TransportError for an error status or a malformed reply."""
    sent_at_s = time.perf_counter()
    reply = post_json(endpoint, request.path, request.body(stream=False))
    elapsed_s = time.perf_counter() - sent_at_s
    if reply.status != 200:
        raise reply.error()
    content = reply.json()
    if isinstance(content, dict) and content.get("error"):
        raise TransportError("server", error_message(content, endpoint))
    choice = first_choice(content)
    if choice is None:
        raise TransportError("protocol", f"{request.path} sent no choice")
    text, reasoning = choice_texts(choice, "message")
    collected = Collected()
    collected.take(text, reasoning, choice_token_ids(choice))
    collected.take_calls(choice, "message")
    collected.close()
    finish = choice.get("finish_reason")
    if not isinstance(finish, str):
        raise TransportError("truncated", "the answer has no finish_reason")
    return collected.answer(elapsed_s, finish_reason=finish, usage=usage_of(content), reply=content)


def stream(endpoint: Endpoint, request: Request, on_tokens: Callable[[Sequence[Hashable]], bool]) -> Answer:
    """The answer as it arrives. `on_tokens` sees the new ids (or words) of each event; True from it ends the request.

    Ending early closes the connection, which makes the server drop the request. Raises TransportError; kind truncated
    where `[DONE]` or the finish reason never came.
    """
    with ByteStream(endpoint, request.path, request.body(stream=True)) as source:
        return read_stream(source.chunks(), endpoint, source.sent_at_s, on_tokens)


def read_stream(
    pieces: Iterable[tuple[float, bytes]],
    endpoint: Endpoint,
    sent_at_s: float,
    on_tokens: Callable[[Sequence[Hashable]], bool],
) -> Answer:
    """The answer in the body of a stream: pairs of arrival time (seconds, monotonic) and bytes, cut anyhow.

    `on_tokens` as for `stream`. Raises TransportError; kind truncated where `[DONE]` or the finish reason never came.
    """
    collected = Collected(sent_at_s)
    splitter = EventSplitter()
    done = False
    now_s = sent_at_s
    for now_s, chunk in pieces:
        if collected.first_byte_s is None:
            collected.first_byte_s = now_s - sent_at_s
        try:
            events = splitter.feed(chunk)
        except ValueError as error:
            raise TransportError("protocol", str(error)) from None
        for event in events:
            if event.strip() == b"[DONE]":
                done = True
                break
            tokens = collected.take_event(decode_json(event, endpoint), endpoint, now_s - sent_at_s)
            if tokens and on_tokens(tokens):
                return collected.answer(now_s - sent_at_s, aborted=True)
        if done:
            break
    rest = collected.close()
    if rest:
        on_tokens(rest)
    if not done:
        raise TransportError("truncated", "the stream ended without [DONE]" if collected.events else "no event came")
    if collected.finish_reason is None:
        raise TransportError("truncated", "the stream ended without a finish_reason")
    return collected.answer(now_s - sent_at_s)
