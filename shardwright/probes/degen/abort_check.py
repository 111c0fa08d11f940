"""Does the server drop a request whose client has left? The probes end loops early and rely on it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from shardwright.probes.client import Request, stream
from shardwright.probes.metrics import delta, read_metrics, wait_idle
from shardwright.probes.server import Server
from shardwright.probes.wire import TransportError

_WAIT_BEFORE_S = 1.0
_WAIT_S = 5.0
_WAIT_AFTER_RUN_S = 10.0
_TOKENS = "vllm:generation_tokens_total"


def seen_idle(server: Server) -> bool | None:
    """Whether nothing runs, after a moment in which others' work may end; None where the server does not say."""
    try:
        left = wait_idle(server.endpoint, _WAIT_BEFORE_S)
    except TransportError:
        return None
    return None if left is None else left == 0


def check_abort(server: Server, request: Request, idle: bool | None) -> dict[str, Any] | None:
    """Leave one endless request at its first token and watch num_requests_running fall to 0.

    `idle` is what `seen_idle` said before the first request of ours. `freed` is None where nothing can be seen:
    others' requests run, or it was over too soon. None where the server gives no such metric or takes no `ignore_eos`.
    """
    if idle is None or not request.extensions:
        return None
    if not idle:
        return {"freed": None, "detail": "requests of others ran"}
    endless = replace(request, fields={**request.fields, "ignore_eos": True})
    try:
        before = read_metrics(server.endpoint)
        stream(server.endpoint, endless, _leave)
        left = wait_idle(server.endpoint, _WAIT_S)
        made = delta(before, read_metrics(server.endpoint), _TOKENS)
    except TransportError:
        return None
    if left:
        return {"freed": False, "detail": f"{left:g} requests ran {_WAIT_S:g} s after their client had left"}
    over = made is not None and made >= request.max_tokens
    return {"freed": None if over else True, "detail": "it was over before it could be dropped" if over else ""}


def check_idle(server: Server) -> dict[str, Any] | None:
    """Whether nothing runs any more after trials that were given up. None where the server does not say."""
    try:
        left = wait_idle(server.endpoint, _WAIT_AFTER_RUN_S)
    except TransportError:
        return None
    if left is None:
        return None
    return {"freed": not left, "detail": f"{left:g} requests ran {_WAIT_AFTER_RUN_S:g} s after the run" if left else ""}


def _leave(_: Sequence[Hashable]) -> bool:
    return True
