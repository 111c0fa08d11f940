"""Count tokens with the server's own tokenizer and chat template, through POST /tokenize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.server import lacks_chat_template
from shardwright.probes.wire import Endpoint, TransportError, post_json


@dataclass(frozen=True)
class Tokenized:
    """A prompt as the model reads it. `max_model_len` is None where the server does not say."""

    count: int
    ids: tuple[int, ...]
    max_model_len: int | None


def tokenize(
    endpoint: Endpoint,
    model: str,
    *,
    prompt: str = "",
    messages: Sequence[Mapping[str, Any]] = (),
    template_fields: Mapping[str, Any] | None = None,
) -> Tokenized:
    """Token ids of a chat (`messages`, after its template) or of a plain `prompt`.

    `template_fields` are the fields of the later request that reach the template: tools, chat_template_kwargs.
    Raises TransportError, and DeployError (exit 3) where the server has no tokenizer to ask.
    """
    body: dict[str, Any] = {"model": model}
    if messages:
        body |= {"messages": list(messages), "add_generation_prompt": True, **(template_fields or {})}
    else:
        body |= {"prompt": prompt, "add_special_tokens": True}
    reply = post_json(endpoint, "/tokenize", body)
    if reply.status in (404, 405, 501):
        raise no_tokenizer(endpoint)
    if reply.status != 200:
        error = reply.error()
        if messages and lacks_chat_template(error):
            raise no_chat_template(error)
        raise error
    content = reply.json()
    ids = content.get("tokens") if isinstance(content, dict) else None
    if not (isinstance(ids, list) and all(type(token) is int for token in ids)):
        raise TransportError("protocol", "/tokenize sent no token ids")
    longest = content.get("max_model_len")
    return Tokenized(len(ids), tuple(ids), longest if type(longest) is int else None)


def count_tokens(
    endpoint: Endpoint,
    model: str,
    *,
    prompt: str = "",
    messages: Sequence[Mapping[str, Any]] = (),
    template_fields: Mapping[str, Any] | None = None,
) -> int:
    """The number of tokens of a prompt; see `tokenize`."""
    return tokenize(endpoint, model, prompt=prompt, messages=messages, template_fields=template_fields).count


def no_tokenizer(endpoint: Endpoint) -> DeployError:
    """The refusal (exit 3) of a probe that needs exact sizes and has no tokenizer to ask."""
    return DeployError(
        f"{endpoint.base_url} has no /tokenize",
        why="prompts of an exact length cannot be made without the model's own tokenizer",
        fix="ask the engine itself, not a gateway before it",
        code=ExitCode.INCONCLUSIVE,
    )


def no_chat_template(error: TransportError) -> DeployError:
    """The refusal of a chat by a model that brings no template."""
    return DeployError(
        "the model has no chat template",
        why=error.detail,
        fix="ask it with --api completions",
        code=ExitCode.HARNESS,
    )
