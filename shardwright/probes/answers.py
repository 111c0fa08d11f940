"""The parts of an answer: text, reasoning, tool calls, token counts, and when each event came.

Text of `reasoning` (or `reasoning_content`) counts as output: a loop there is a loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwright.probes.units import UnitSplitter
from shardwright.probes.wire import Endpoint, TransportError, error_message

TokenSource = Literal["ids", "words"]


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
    token_events: tuple[tuple[float, int], ...] = ()
    """Arrival and number of token ids of each event that brought ids or text; 0 where the server gives no ids."""
    sent_at_s: float | None = None
    """When it was sent, by the monotonic clock: what puts several streams on one time line. None in one piece."""
    reply: Mapping[str, Any] = field(default_factory=dict)
    """The whole body of an answer in one piece, for what only some probes read (logprobs, prompt_logprobs)."""

    @property
    def whole_text(self) -> str:
        return self.reasoning + self.text


class Collected:
    """The parts of an answer as they come in. Times are seconds from sending."""

    def __init__(self, sent_at_s: float | None = None) -> None:
        self.sent_at_s = sent_at_s
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.first_byte_s: float | None = None
        self.ttft_s: float | None = None
        self.events = 0
        self.tokens = 0
        self.text_times_s: list[float] = []
        self.token_events: list[tuple[float, int]] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._units = UnitSplitter()
        self._source: TokenSource | None = None

    def take_event(self, event: Any, endpoint: Endpoint, after_s: float) -> Sequence[Hashable]:
        """Add one event; returns the new ids or words. Raises TransportError for an error that the server streams."""
        self.events += 1
        if isinstance(event, dict) and event.get("error"):
            raise TransportError("server", error_message(event, endpoint))
        usage = usage_of(event)
        if usage is not None:
            self.usage = usage
        choice = first_choice(event)
        if choice is None:
            return ()
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self.finish_reason = finish
        text, reasoning = choice_texts(choice, "delta")
        if text or reasoning or self.take_calls(choice, "delta"):
            self.text_times_s.append(after_s)
            if self.ttft_s is None:
                self.ttft_s = after_s
        ids = choice_token_ids(choice)
        if text or reasoning or ids:
            self.token_events.append((after_s, len(ids)))
        return self.take(text, reasoning, ids)

    def take(self, text: str, reasoning: str, ids: Sequence[int]) -> Sequence[Hashable]:
        """Add text; returns the new ids, or words where the first text came without ids."""
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
        """The word that was waiting for more text."""
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
        """What came so far, as one answer."""
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
            token_events=tuple(self.token_events),
            sent_at_s=self.sent_at_s,
            reply=reply or {},
        )


def first_choice(content: Any) -> dict[str, Any] | None:
    """The first choice of a reply or event, where there is one."""
    choices = content.get("choices") if isinstance(content, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else None


def choice_texts(choice: Mapping[str, Any], part: str) -> tuple[str, str]:
    """Content and reasoning of a chat message or delta, or the text of a completion."""
    message = choice.get(part)
    if not isinstance(message, dict):
        return _text(choice.get("text")), ""
    return _text(message.get("content")), _text(message.get("reasoning") or message.get("reasoning_content"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def choice_token_ids(choice: Mapping[str, Any]) -> list[int]:
    """Token ids where the server gives them, else none."""
    ids = choice.get("token_ids")
    return ids if isinstance(ids, list) and all(isinstance(i, int) for i in ids) else []


def usage_of(content: Any) -> Usage | None:
    """The token counts of a reply or event, where it has any."""
    usage = content.get("usage") if isinstance(content, dict) else None
    if not isinstance(usage, dict):
        return None

    def count(name: str) -> int | None:
        value = usage.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return Usage(count("prompt_tokens"), count("completion_tokens"), count("total_tokens"))
