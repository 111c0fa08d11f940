"""What a probe must know about a server before it judges answers."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.capabilities import Capabilities, detect
from shardwright.probes.client import Request, stream
from shardwright.probes.wire import Endpoint, TransportError, get

_STARTED = re.compile(rb"^process_start_time_seconds ([0-9.e+]+)\s*$", re.MULTILINE)
_NO_TEMPLATE = re.compile(r"chat.?template", re.IGNORECASE)


@dataclass(frozen=True)
class Server:
    """A server that answers. `started_at` tells one boot from the next and is None where the server does not say."""

    endpoint: Endpoint
    model: str
    version: str | None
    started_at: str | None

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it can be asked; found out on first use. Raises TransportError."""
        return detect(self.endpoint, self.model, self.version)

    def record(self) -> dict[str, str | None]:
        """Who it is, for records."""
        return {
            "base_url": self.endpoint.base_url,
            "model": self.model,
            "version": self.version,
            "started_at": self.started_at,
        }


def identify(endpoint: Endpoint, model: str | None) -> Server:
    """Ask the server who it is. `model` None takes the first name that it lists.

    Raises TransportError where nobody answers, DeployError (exit 4) where the model is not served.
    """
    names = served_models(endpoint)
    if not names:
        raise DeployError(f"{endpoint.base_url} lists no model", code=ExitCode.HARNESS)
    if model is not None and model not in names:
        raise DeployError(
            f"{endpoint.base_url} does not serve {model!r}",
            why=f"it lists {', '.join(repr(name) for name in names)}",
            fix="name the layout that this server was started from",
            code=ExitCode.HARNESS,
        )
    return Server(endpoint, model or names[0], _version(endpoint), _started_at(endpoint))


def served_models(endpoint: Endpoint) -> list[str]:
    """The names under /v1/models. Raises TransportError for an error status or a malformed list."""
    reply = get(endpoint, "/v1/models")
    if reply.status != 200:
        raise reply.error()
    content = reply.json()
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, list):
        raise TransportError("protocol", "/v1/models sent no list of models")
    return [entry["id"] for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def version_text(content: Any) -> str | None:
    """The version in the body of /version, where there is one."""
    version = content.get("version") if isinstance(content, dict) else None
    return version if isinstance(version, str) else None


def fit_request(endpoint: Endpoint, request: Request) -> Request:
    """Send `request` once, end it at its first token, and return it as this server takes it.

    A server that refuses fields outside the OpenAI interface gets none of them; a loop is then looked for in words.
    Raises TransportError where the server cannot be reached, stalls, or refuses the request itself. Other failures
    may pass, so they are left to the trials.
    """
    try:
        stream(endpoint, request, _first_token_is_enough)
    except TransportError as error:
        if lacks_chat_template(error):
            raise DeployError(
                "the model has no chat template",
                why=error.detail,
                fix="ask it with --api completions",
                code=ExitCode.HARNESS,
            ) from None
        refused = error.status is not None and 400 <= error.status < 500 and error.status != 429
        if not refused and error.kind not in ("connect", "timeout"):
            return request
        if error.status not in (400, 422) or not request.extensions:
            raise
        plain = replace(request, extensions=False)
        try:
            stream(endpoint, plain, _first_token_is_enough)
        except TransportError:
            raise error from None
        return plain
    return request


def lacks_chat_template(error: TransportError) -> bool:
    """Whether the server refused a chat because the model brings no template for it."""
    return error.status in (400, 422, 500) and _NO_TEMPLATE.search(error.detail) is not None


def _first_token_is_enough(_: Sequence[Hashable]) -> bool:
    return True


def _version(endpoint: Endpoint) -> str | None:
    try:
        reply = get(endpoint, "/version")
        return version_text(reply.json()) if reply.status == 200 else None
    except TransportError:
        return None


def _started_at(endpoint: Endpoint) -> str | None:
    try:
        reply = get(endpoint, "/metrics")
    except TransportError:
        return None
    found = _STARTED.search(reply.body) if reply.status == 200 else None
    return found.group(1).decode("ascii") if found else None
