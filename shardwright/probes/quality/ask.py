"""Ask a server for the quality probe, and keep each exchange as it came: judging happens later, from what is on file.

An exchange is a dict: `request` (what was asked beyond the sampler), `status`, and `reply` (one piece) or `events`
with `done`, `bytes_after_done` and `bad_utf8` (streamed), or `error` (the text of a refusal).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwright.probes.client import GREEDY, Sampler
from shardwright.probes.server import Server
from shardwright.probes.sse import EventSplitter
from shardwright.probes.wire import ByteStream, TransportError, error_message, post_json

Exchange = dict[str, Any]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
THINKING_OFF: Mapping[str, bool] = {"enable_thinking": False, "thinking": False}
THINKING_ON: Mapping[str, bool] = {"enable_thinking": True, "thinking": True}
"""Model families name the switch differently, and templates pass over a name that is not theirs."""
SAMPLED = replace(GREEDY, temperature=0.8)

_ANSWERS_OF_THE_WAY = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses that speak of the moment, not of the request."""
_EXTENDED = ("top_k", "min_p", "repetition_penalty")


class RefusedError(Exception):
    """The server took the request for a bad one, or cannot serve it; the exchange says so."""


class Asker:
    """Sends the requests of one check and collects their exchanges, in order."""

    def __init__(self, server: Server, *, extensions: bool, max_tokens: int) -> None:
        self.server = server
        self.extensions = extensions
        self.max_tokens = max_tokens
        self.exchanges: list[Exchange] = []
        self.lost: list[Mapping[str, Any]] = []
        """Attempts that brought no complete answer and were made again."""

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        sampler: Sampler = GREEDY,
        thinking: Mapping[str, bool] = THINKING_OFF,
        **fields: Any,
    ) -> Exchange:
        """One chat; a text is one message of a user. Raises RefusedError, TransportError."""
        body: dict[str, Any] = {"messages": user(messages) if isinstance(messages, str) else list(messages)}
        body |= self._common(stream, sampler, thinking)
        return self.send(CHAT, body | fields)

    def completion(self, prompt: str, **fields: Any) -> Exchange:
        """One completion in one piece. Raises RefusedError, TransportError."""
        return self.send(COMPLETIONS, {"prompt": prompt} | self._common(False, GREEDY, None) | fields)

    def respond(self, given: Any, *, stream: bool = False, **fields: Any) -> Exchange:
        """One answer of the Responses interface; it keeps nothing. Raises RefusedError, TransportError."""
        body: dict[str, Any] = {"input": given, "temperature": 0.0, "top_p": 1.0, "store": False, "stream": stream}
        body["max_output_tokens"] = self.max_tokens
        if self.extensions:
            body |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "top_k": -1}
            body["chat_template_kwargs"] = dict(THINKING_OFF)
        return self.send(RESPONSES, body | fields)

    def send(self, path: str, body: Mapping[str, Any]) -> Exchange:
        """Send, once more where the way to the server failed, and keep what came.

        A status of 500 counts as an answer where it comes twice and a plain request right after is answered: then it
        is this request that breaks the server.
        """
        body = {"model": self.server.model, **body}
        longest = self.server.capabilities.max_model_len
        for name in ("max_tokens", "max_output_tokens"):
            # Half of a short context must stay for the prompt, or the request is rightly refused.
            if name in body and longest is not None:
                body[name] = min(body[name], longest // 2)
        try:
            exchange = self._once(path, body)
        except TransportError as error:
            self.lost.append({"kind": error.kind, "status": error.status, "detail": error.detail})
            try:
                exchange = self._once(path, body)
            except TransportError as again:
                if again.status != 500 or error.status != 500 or not self._plain_is_answered():
                    raise
                exchange = _refusal(path, body, again)
        self.exchanges.append(exchange)
        if exchange["status"] != 200:
            raise RefusedError
        return exchange

    def _once(self, path: str, body: Mapping[str, Any]) -> Exchange:
        try:
            content = self._streamed(path, body) if body.get("stream") else self._whole(path, body)
        except TransportError as error:
            status = error.status
            if status is None or status >= 500 or status in _ANSWERS_OF_THE_WAY:
                raise
            return _refusal(path, body, error)
        return {"request": _asked(path, body), "status": 200, **content}

    def _whole(self, path: str, body: Mapping[str, Any]) -> Exchange:
        reply = post_json(self.server.endpoint, path, body)
        if reply.status != 200:
            raise reply.error()
        content = reply.json()
        return {"reply": content if isinstance(content, dict) else {}}

    def _streamed(self, path: str, body: Mapping[str, Any]) -> Exchange:
        splitter = EventSplitter()
        events: list[Any] = []
        done, after_done, bad_utf8 = False, 0, False
        with ByteStream(self.server.endpoint, path, body) as source:
            for _, chunk in source.chunks():
                if done:
                    after_done += len(chunk.strip())
                for raw in splitter.feed(chunk):
                    if raw.strip() == b"[DONE]":
                        done = True
                        continue
                    after_done += len(raw) if done else 0
                    try:
                        event = json.loads(raw.decode("utf-8"))
                    except UnicodeDecodeError:
                        bad_utf8 = True
                        continue
                    except ValueError:
                        raise TransportError("protocol", f"{path} streamed what is not JSON") from None
                    if isinstance(event, dict) and event.get("error"):
                        raise TransportError("server", error_message(event, self.server.endpoint))
                    events.append(event)
        return {"events": events, "done": done, "bytes_after_done": after_done, "bad_utf8": bad_utf8}

    def _plain_is_answered(self) -> bool:
        body = {"model": self.server.model, "messages": user("Hello"), "max_tokens": 1, **self._sampling(GREEDY)}
        try:
            return post_json(self.server.endpoint, CHAT, body).status == 200
        except TransportError:
            return False

    def _common(self, stream: bool, sampler: Sampler, thinking: Mapping[str, bool] | None) -> dict[str, Any]:
        fields: dict[str, Any] = {"max_tokens": self.max_tokens, "n": 1, "stream": stream, **self._sampling(sampler)}
        if stream:
            fields["stream_options"] = {"include_usage": True}
        if self.extensions:
            fields["return_token_ids"] = True
            if thinking is not None:
                fields["chat_template_kwargs"] = dict(thinking)
        return fields

    def _sampling(self, sampler: Sampler) -> dict[str, Any]:
        fields = sampler.fields()
        return {name: value for name, value in fields.items() if self.extensions or name not in _EXTENDED}


def user(text: str) -> list[dict[str, Any]]:
    """A conversation that holds this one question."""
    return [{"role": "user", "content": text}]


def _refusal(path: str, body: Mapping[str, Any], error: TransportError) -> Exchange:
    return {"request": _asked(path, body), "status": error.status, "error": error.detail}


def _asked(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"path": path, **body}
