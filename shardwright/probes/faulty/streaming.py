"""How answers go out: whole or as events, at the pace of an engine, and the ways in which the wire can fail."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Protocol

from shardwright.probes.faulty.engine import Job

if TYPE_CHECKING:
    import threading

    from shardwright.probes.faulty.behaviour import Behaviour

_FAILS_AFTER_EVENTS = 3
_BUNCH_EVENTS = 8
_STALL_S = 600.0
_LONGEST_NAP_S = 0.05


class ClientGoneError(Exception):
    """The client closed its connection."""


@dataclass(frozen=True)
class Pace:
    """Times of the made-up engine, seconds."""

    step_s: float
    prefill_s_per_token: float

    def prefill(self, job: Job, least_s: float, gone: Callable[[], bool]) -> None:
        """Wait as long as the uncached part of the prompt takes, and at least `least_s`."""
        uncached = job.situation.prompt_tokens - job.situation.cached_tokens
        nap(max(least_s, uncached * self.prefill_s_per_token), gone)


def nap(seconds: float, gone: Callable[[], bool]) -> None:
    """Sleep in slices. Raises ClientGoneError once the client has left."""
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        time.sleep(min(left, _LONGEST_NAP_S))
        if gone():
            raise ClientGoneError


def client_is_gone(connection: socket.socket) -> bool:
    """Whether the peer has closed; a request that follows on the same connection is not that."""
    readable, _, _ = select.select([connection], [], [], 0)
    if not readable:
        return False
    with contextlib.suppress(OSError):
        return connection.recv(1, socket.MSG_PEEK) == b""
    return True


class Sender(Protocol):
    """What sending needs of the server: how it misbehaves, its pace, and whether it is about to leave."""

    behaviour: Behaviour
    pace: Pace
    leaving: threading.Event


def send_whole(handler: BaseHTTPRequestHandler, server: Sender, job: Job, payload: dict[str, Any], tokens: int) -> None:
    """Send an answer in one piece, after the time that its tokens take."""
    behaviour = server.behaviour
    nap(server.pace.step_s * tokens, lambda: client_is_gone(handler.connection))
    wire = behaviour.wire if behaviour.wire_at(job.situation) else None
    if behaviour.payload is not None:
        payload = behaviour.payload(payload, job.situation)
    content = json.dumps(payload, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if wire == "stall":
        server.leaving.wait(_STALL_S)
    if wire == "not-json":
        content = b"<html>502 Bad Gateway</html>"
    if wire == "error-event":
        content = json.dumps(_ERROR).encode()
    missing = 50 if wire in ("drop", "half-close") else 0
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content) + missing))
    handler.end_headers()
    handler.wfile.write(content)
    handler.close_connection = handler.close_connection or bool(missing)


_ERROR = {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}}


def send_events(handler: BaseHTTPRequestHandler, server: Sender, job: Job, events: Iterable[dict[str, Any]]) -> None:
    """Send an answer as server-sent events in chunked framing."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    behaviour = server.behaviour
    if behaviour.events is not None:
        events = behaviour.events(list(events), job.situation)
    if not _send_all(handler, server, job, events, behaviour):
        handler.close_connection = True


def _send_all(
    handler: BaseHTTPRequestHandler,
    server: Sender,
    job: Job,
    events: Iterable[dict[str, Any]],
    behaviour: Behaviour,
) -> bool:
    """True where the answer came to its end in the framing, whatever its content."""
    wire = behaviour.wire if behaviour.wire_at(job.situation) else None
    held: list[bytes] = []
    began_s = time.perf_counter()
    for number, event in enumerate(events):
        if number:
            wait_s = began_s + number * server.pace.step_s - time.perf_counter()
            nap(wait_s, lambda: client_is_gone(handler.connection))
        if not number % 16 and client_is_gone(handler.connection):
            raise ClientGoneError
        if wire == "stall":
            server.leaving.wait(_STALL_S)
        if number == _FAILS_AFTER_EVENTS and wire is not None:
            if wire in ("drop", "half-close"):
                return _hang_up(handler, wire)
            if wire == "error-event":
                _chunk(handler, _data(_ERROR))
                break
            if wire == "not-json":
                _chunk(handler, b"data: {broken\n\n")
                break
        if wire == "role-only" and number == 1:
            break
        held.append(_data(event))
        if wire != "bunched" or len(held) >= _BUNCH_EVENTS:
            _chunk(handler, b"".join(held))
            held = []
    if held:
        _chunk(handler, b"".join(held))
    if wire != "no-done" and job.asked.api != "responses":
        _chunk(handler, b"data: [DONE]\n\n")
    handler.wfile.write(b"0\r\n\r\n")
    return True


def _hang_up(handler: BaseHTTPRequestHandler, wire: str) -> bool:
    """Half-close ends our side only and waits for the peer, as a proxy does; drop closes both sides."""
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_WR if wire == "half-close" else socket.SHUT_RDWR)
    return False


def _data(event: dict[str, Any]) -> bytes:
    head = f"event: {event['type']}\n".encode() if str(event.get("type", "")).startswith("response.") else b""
    return head + b"data: " + json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n"


def _chunk(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
