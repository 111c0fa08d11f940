"""One streaming client for OpenAI-compatible servers: what is asked, what came back, and when.

Every sampler field is sent, since a model's own generation_config would otherwise fill the gaps. Text of `reasoning`
(or `reasoning_content`) counts as output: a loop there is a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwright.probes.sse import EventSplitter
from shardwright.probes.units import UnitSplitter
from shardwright.probes.wire import (
    ByteStream,
    Endpoint,
    TransportError,
    decode_json,
    error_message,
    post_json,
)

Api = Literal["chat", "completions"]
TokenSource = Literal["ids", "words"]

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


@dataclass(frozen=True)
class ToolCall:
    """One call that the model asks for; `arguments` is the text as it came, which should be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Token counts as the server reports them; None where a field is missing or no whole number."""

    prompt_tokens: int | None
    completion_tokens: int | None
    total_tokens: int | None


@dataclass(frozen=True)
class Answer:
    """What one request brought. Times are seconds from sending; `ttft_s` is to the first text, not the role chunk.

    `aborted` means that the caller ended it; then there is no finish reason. `tokens` counts ids, or words where the
    server gives no ids (`token_source`).
    """

    text: str
    reasoning: str
    finish_reason: str | None
    usage: Usage | None
    tokens: int
    token_source: TokenSource
    elapsed_s: float
    first_byte_s: float | None = None
    ttft_s: float | None = None
    aborted: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    text_times_s: tuple[float, ...] = ()
    """Arrival of each event that carried text, reasoning or a tool call; empty for an answer in one piece."""
    reply: Mapping[str, Any] = field(default_factory=dict)
    """The whole body of an answer in one piece, for what only some probes read (logprobs, prompt_logprobs)."""

    @property
    def whole_text(self) -> str:
        return self.reasoning + self.text


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
    choice = _first_choice(content)
    if choice is None:
        raise TransportError("protocol", f"{request.path} sent no choice")
    text, reasoning = _texts(choice, "message")
    collected = _Collected()
    collected.take(text, reasoning, _token_ids(choice))
    collected.take_calls(choice, "message")
    collected.close()
    finish = choice.get("finish_reason")
    if not isinstance(finish, str):
        raise TransportError("truncated", "the answer has no finish_reason")
    return collected.answer(elapsed_s, finish_reason=finish, usage=_usage(content), reply=content)


def stream(endpoint: Endpoint, request: Request, on_tokens: Callable[[Sequence[Hashable]], bool]) -> Answer:
    """The answer as it arrives. `on_tokens` sees the new ids (or words) of each event; True from it ends the request.

    Ending early closes the connection, which makes the server drop the request. Raises TransportError; kind truncated
    where `[DONE]` or the finish reason never came.
    """
    collected = _Collected()
    with ByteStream(endpoint, request.path, request.body(stream=True)) as source:
        started_s = source.sent_at_s
        splitter = EventSplitter()
        done = False
        for now_s, chunk in source.chunks():
            if collected.first_byte_s is None:
                collected.first_byte_s = now_s - started_s
            try:
                events = splitter.feed(chunk)
            except ValueError as error:
                raise TransportError("protocol", str(error)) from None
            for event in events:
                if event.strip() == b"[DONE]":
                    done = True
                    break
                tokens = collected.take_event(decode_json(event, endpoint), endpoint, now_s - started_s)
                if tokens and on_tokens(tokens):
                    return collected.answer(now_s - started_s, aborted=True)
            if done:
                break
        elapsed_s = time.perf_counter() - started_s
    rest = collected.close()
    if rest:
        on_tokens(rest)
    if not done:
        raise TransportError("truncated", "the stream ended without [DONE]" if collected.events else "no event came")
    if collected.finish_reason is None:
        raise TransportError("truncated", "the stream ended without a finish_reason")
    return collected.answer(elapsed_s)


class _Collected:
    """The parts of an answer as they come in."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.first_byte_s: float | None = None
        self.ttft_s: float | None = None
        self.events = 0
        self.tokens = 0
        self.text_times_s: list[float] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._units = UnitSplitter()
        self._source: TokenSource | None = None

    def take_event(self, event: Any, endpoint: Endpoint, after_s: float) -> Sequence[Hashable]:
        self.events += 1
        if isinstance(event, dict) and event.get("error"):
            raise TransportError("server", error_message(event, endpoint))
        usage = _usage(event)
        if usage is not None:
            self.usage = usage
        choice = _first_choice(event)
        if choice is None:
            return ()
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self.finish_reason = finish
        text, reasoning = _texts(choice, "delta")
        if text or reasoning or self.take_calls(choice, "delta"):
            self.text_times_s.append(after_s)
            if self.ttft_s is None:
                self.ttft_s = after_s
        return self.take(text, reasoning, _token_ids(choice))

    def take(self, text: str, reasoning: str, ids: Sequence[int]) -> Sequence[Hashable]:
        self.text.append(text)
        self.reasoning.append(reasoning)
        if self._source is None and (ids or text or reasoning):
            self._source = "ids" if ids else "words"
        tokens: Sequence[Hashable] = ids if self._source == "ids" else self._units.feed(reasoning + text)
        self.tokens += len(tokens)
        return tokens

    def take_calls(self, choice: Mapping[str, Any], part: str) -> bool:
        """Add whole calls or pieces of them; True where there was any."""
        message = choice.get(part)
        pieces = message.get("tool_calls") if isinstance(message, dict) else None
        if not isinstance(pieces, list):
            return False
        for place, piece in enumerate(pieces):
            if not isinstance(piece, dict):
                continue
            index = piece.get("index", place)
            call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
            function = piece.get("function")
            function = function if isinstance(function, dict) else {}
            call["id"] = call["id"] or _text(piece.get("id"))
            call["name"] = call["name"] or _text(function.get("name"))
            call["arguments"] += _text(function.get("arguments"))
        return bool(pieces)

    def close(self) -> Sequence[Hashable]:
        rest = self._units.finish()
        self.tokens += len(rest)
        return rest

    def answer(
        self,
        elapsed_s: float,
        *,
        aborted: bool = False,
        finish_reason: str | None = None,
        usage: Usage | None = None,
        reply: Mapping[str, Any] | None = None,
    ) -> Answer:
        return Answer(
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            finish_reason=finish_reason or self.finish_reason,
            usage=usage or self.usage,
            tokens=self.tokens,
            token_source=self._source or "words",
            elapsed_s=elapsed_s,
            first_byte_s=self.first_byte_s,
            ttft_s=self.ttft_s,
            aborted=aborted,
            tool_calls=tuple(ToolCall(**call) for _, call in sorted(self._calls.items())),
            text_times_s=tuple(self.text_times_s),
            reply=reply or {},
        )


def _first_choice(content: Any) -> dict[str, Any] | None:
    choices = content.get("choices") if isinstance(content, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else None


def _texts(choice: Mapping[str, Any], part: str) -> tuple[str, str]:
    """Content and reasoning of a chat message or delta, or the text of a completion."""
    message = choice.get(part)
    if not isinstance(message, dict):
        return _text(choice.get("text")), ""
    return _text(message.get("content")), _text(message.get("reasoning") or message.get("reasoning_content"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _token_ids(choice: Mapping[str, Any]) -> list[int]:
    ids = choice.get("token_ids")
    return ids if isinstance(ids, list) and all(isinstance(i, int) for i in ids) else []


def _usage(content: Any) -> Usage | None:
    usage = content.get("usage") if isinstance(content, dict) else None
    if not isinstance(usage, dict):
        return None

    def count(name: str) -> int | None:
        value = usage.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return Usage(count("prompt_tokens"), count("completion_tokens"), count("total_tokens"))
