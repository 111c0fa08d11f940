"""A request body as the faulty server understands it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Api = Literal["chat", "completions", "responses"]


class RefusedError(Exception):
    """The request is refused with this HTTP status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Asked:
    """One request. `messages` is empty for a completion; `prompt` holds its text, `prompt_ids` its ids."""

    api: Api
    body: Mapping[str, Any]
    messages: tuple[Mapping[str, Any], ...]
    prompt: str
    prompt_ids: tuple[int, ...]

    @property
    def question(self) -> str:
        """The last text that a user wrote."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return content_text(message)
        return self.prompt

    @property
    def everything(self) -> str:
        """All text of the prompt."""
        return "\n".join([*(content_text(message) for message in self.messages), self.prompt])

    @property
    def turns(self) -> int:
        return sum(message.get("role") == "user" for message in self.messages)

    @property
    def max_tokens(self) -> int | None:
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            value = self.body.get(name)
            if isinstance(value, int):
                return value
        return 16 if self.api == "completions" else None

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def greedy(self) -> bool:
        return self.body.get("temperature") == 0

    @property
    def seed(self) -> int:
        value = self.body.get("seed")
        return value if isinstance(value, int) else 0

    @property
    def stops(self) -> tuple[str, ...]:
        stop = self.body.get("stop") or ()
        return (stop,) if isinstance(stop, str) else tuple(stop)

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Function tools as `{name, parameters, ...}`, from either interface's form."""
        if self.body.get("tool_choice") == "none":
            return ()
        tools = self.body.get("tools") or ()
        return [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]

    @property
    def thinking(self) -> bool:
        kwargs = self.body.get("chat_template_kwargs") or {}
        effort = self.body.get("reasoning") if self.api == "responses" else None
        return bool(kwargs.get("enable_thinking") or kwargs.get("thinking") or effort)


def read_request(api: Api, body: Mapping[str, Any]) -> Asked:
    """Raises RefusedError (400) for a body without a prompt."""
    if api == "completions":
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return Asked(api, body, (), prompt, ())
        if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
            return Asked(api, body, (), "", tuple(prompt))
        raise RefusedError(400, "prompt must be a text or a list of token ids")
    messages = body.get("messages") if api == "chat" else _as_messages(body)
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise RefusedError(400, "messages must be a list that is not empty")
    return Asked(api, body, tuple(messages), "", ())


def content_text(message: Mapping[str, Any]) -> str:
    """The text of a message's content, whether one string or parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _as_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The input of the Responses interface as chat messages."""
    given = body.get("input")
    messages: list[dict[str, Any]] = []
    if isinstance(body.get("instructions"), str):
        messages.append({"role": "system", "content": body["instructions"]})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in given if isinstance(given, list) else ():
        kind = item.get("type", "message")
        if kind == "function_call":
            call = {
                "id": item.get("call_id"),
                "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            }
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "message":
            messages.append({"role": item.get("role", "user"), "content": item.get("content")})
    return messages
