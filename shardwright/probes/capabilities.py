"""What a server can be asked, found out by effect with a few one-token requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.probes.metrics import read_metrics
from shardwright.probes.wire import Endpoint, HttpReply, TransportError, get, post_json

_WORD = "Hello"
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time of day.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_EXTENSIONS = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Capabilities:
    """Each field is True only where the server showed the effect, not where it merely took the request.

    `cache_salt` is the exception: it is True where the field is taken; whether the cache obeys shows in
    `vllm:prefix_cache_hits_total`.
    """

    completions: bool
    chat: bool
    """False also for a model without a chat template."""
    extensions: bool
    """Sampler fields outside the OpenAI interface (top_k, min_p, repetition_penalty) are taken."""
    tokenize: bool
    return_token_ids: bool
    cache_salt: bool
    prompt_logprobs: bool
    logprobs: bool
    tools: bool
    """A chat with tools and `tool_choice: auto` is taken."""
    responses: bool
    metrics: bool
    version: str | None
    max_model_len: int | None
    """Longest prompt and answer together, tokens."""


def detect(endpoint: Endpoint, model: str, version: str | None) -> Capabilities:
    """Ask once; `Server.capabilities` keeps the answer. Raises TransportError where the server cannot be reached."""
    common = {"model": model, "max_tokens": 1, "temperature": 0, "seed": 0, "stream": False}
    prompt: dict[str, Any] = common | {"prompt": _WORD}
    chat: dict[str, Any] = common | {"messages": [{"role": "user", "content": _WORD}]}

    def ask(path: str, body: dict[str, Any], **fields: Any) -> dict[str, Any] | None:
        return _content(_post(endpoint, path, body | fields))

    def completion(**fields: Any) -> dict[str, Any] | None:
        return _choice(ask("/v1/completions", prompt, **fields))

    def chatted(**fields: Any) -> dict[str, Any] | None:
        return _choice(ask("/v1/chat/completions", chat, **fields))

    plain, chat_plain = completion(), chatted()
    # Where only chat is served, what it takes stands for the server.
    either = completion if plain is not None else chatted
    ids = either(return_token_ids=True)
    tokens = ask("/tokenize", {"model": model, "prompt": _WORD})
    return Capabilities(
        completions=plain is not None,
        chat=chat_plain is not None,
        extensions=either(**_EXTENSIONS) is not None,
        tokenize=isinstance((tokens or {}).get("count"), int),
        return_token_ids=_has(ids, "token_ids"),
        cache_salt=either(cache_salt="shardwright-probe") is not None,
        prompt_logprobs=_has(completion(prompt_logprobs=1), "prompt_logprobs"),
        logprobs=_has(completion(logprobs=1), "logprobs") or _has(chatted(logprobs=True, top_logprobs=1), "logprobs"),
        tools=chatted(tools=[_TOOL], tool_choice="auto") is not None,
        responses=_responds(endpoint, model),
        metrics=read_metrics(endpoint) is not None,
        version=version,
        max_model_len=max_model_len(endpoint, model),
    )


def max_model_len(endpoint: Endpoint, model: str) -> int | None:
    """The limit that /v1/models states for the served model, tokens. Raises TransportError."""
    content = _content(get(endpoint, "/v1/models"))
    data = (content or {}).get("data")
    for entry in data if isinstance(data, list) else ():
        if isinstance(entry, dict) and entry.get("id") == model:
            limit = entry.get("max_model_len")
            return limit if isinstance(limit, int) else None
    return None


def _responds(endpoint: Endpoint, model: str) -> bool:
    body = {"model": model, "input": _WORD, "max_output_tokens": 16, "temperature": 0, "store": False}
    content = _content(_post(endpoint, "/v1/responses", body))
    return isinstance((content or {}).get("output"), list)


def _post(endpoint: Endpoint, path: str, body: dict[str, Any]) -> HttpReply | None:
    """The reply; None for one that came broken. A server that nobody can reach is an error."""
    try:
        return post_json(endpoint, path, body)
    except TransportError as error:
        if error.kind in ("connect", "timeout"):
            raise
        return None


def _content(reply: HttpReply | None) -> dict[str, Any] | None:
    if reply is None or reply.status != 200:
        return None
    try:
        content = reply.json()
    except TransportError:
        return None
    return content if isinstance(content, dict) and not content.get("error") else None


def _choice(content: dict[str, Any] | None) -> dict[str, Any] | None:
    choices = (content or {}).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else None


def _has(choice: dict[str, Any] | None, name: str) -> bool:
    return bool(choice and choice.get(name))
