"""Many streams at once with true times of arrival, over the standard library.

Each read is stamped when the event loop hands it over, and all parsing waits until every stream has ended: work before
a stamp would show up as the server's own delay, on every stream that waits its turn.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import fmean
from urllib.parse import urlsplit

from shardwright.probes.client import Answer, Request, read_stream
from shardwright.probes.http_body import FramingError, Read, read_head, read_reply
from shardwright.probes.wire import Endpoint, TransportError, http_error, transport_error

_BUNCHED = 0.2
_WATCH_EVERY_S = 0.1
_READ_BYTES = 64 * 1024
_MAX_REPLY_BYTES = 256 * 1024 * 1024
_CHUNKED_END = b"0\r\n\r\n"


def run_streams(
    endpoint: Endpoint, requests: Sequence[Request], concurrency: int | None = None
) -> list[Answer | TransportError]:
    """Send all requests, `concurrency` at a time (all at once by default); answers or errors in the same order.

    `Answer.sent_at_s` puts the streams on one time line. Must not be called from within a running event loop.
    """
    if not requests:
        return []
    limit = min(concurrency or len(requests), len(requests))
    with _no_collector():
        streams = asyncio.run(_run(endpoint, requests, limit))
    return [_answer(stream, endpoint) for stream in streams]


def bunched_share(times_s: Sequence[float]) -> float:
    """Share of gaps under 20 % of the mean gap: events that came in one read, whose gaps tell nothing.

    0 where there are fewer than two times. Above 5 % the gaps are no statement about the server.
    """
    gaps = [later - earlier for earlier, later in pairwise(times_s)]
    if not gaps:
        return 0.0
    limit = _BUNCHED * fmean(gaps)
    return sum(gap < limit for gap in gaps) / len(gaps)


class _Stream(asyncio.BufferedProtocol):
    """One connection: stamps what comes and tells when the reply is over, with as little work as possible.

    All streams read into one buffer, since the loop hands over one read at a time and memory of its own for each read
    would cost more than the rest.
    """

    def __init__(self, buffer: memoryview) -> None:
        self.reads: list[Read] = []
        self._buffer = buffer
        self.size_bytes = 0
        self.sent_at_s = 0.0
        self.closed = False
        self.failure: TransportError | None = None
        self.ended = asyncio.Event()
        self._ends_at: int | None = None
        self._headless = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        now_s = time.perf_counter()
        data = bytes(self._buffer[:nbytes])
        self.reads.append((now_s, data))
        self.size_bytes += nbytes
        if self._headless:
            self._look_for_head()
        if self._ends_at is not None:
            if self.size_bytes >= self._ends_at:
                self.ended.set()
        elif data.endswith(b"\r\n\r\n") or len(data) < len(_CHUNKED_END):
            self._look_for_end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.ended.set()

    def _look_for_head(self) -> None:
        try:
            head = read_head(b"".join(data for _, data in self.reads))
        except FramingError:
            self.ended.set()
            return
        if head is not None:
            self._headless = False
            self._ends_at = None if head.length_bytes is None else head.body_at + head.length_bytes

    def _look_for_end(self) -> None:
        tail = b""
        for _, data in reversed(self.reads):
            tail = data + tail
            if len(tail) >= len(_CHUNKED_END):
                break
        # The text of an event may end like a reply, so the framing is asked; this happens once a stream.
        try:
            if tail.endswith(_CHUNKED_END) and read_reply(self.reads, closed=False).complete:
                self.ended.set()
        except FramingError:
            self.ended.set()


async def _run(endpoint: Endpoint, requests: Sequence[Request], concurrency: int) -> list[_Stream]:
    buffer = memoryview(bytearray(_READ_BYTES))
    streams = [_Stream(buffer) for _ in requests]
    # Bodies are ready before the first is sent, so that the streams start together.
    messages = [_message(endpoint, request) for request in requests]
    context = ssl.create_default_context() if urlsplit(endpoint.base_url).scheme == "https" else None
    waiting = iter(range(len(requests)))

    async def worker() -> None:
        for index in waiting:
            await _one(endpoint, streams[index], messages[index], context)

    watching = asyncio.create_task(_watch(endpoint, streams))
    try:
        await asyncio.gather(*(worker() for _ in range(concurrency)))
    finally:
        watching.cancel()
    return streams


async def _one(endpoint: Endpoint, stream: _Stream, message: bytes, context: ssl.SSLContext | None) -> None:
    parts = urlsplit(endpoint.base_url)
    port = parts.port or (443 if context else 80)
    connecting = asyncio.get_running_loop().create_connection(lambda: stream, parts.hostname or "", port, ssl=context)
    try:
        transport, _ = await asyncio.wait_for(connecting, endpoint.connect_timeout_s)
    except Exception as error:
        stream.failure = transport_error(error, endpoint, connected=False)
        return
    stream.sent_at_s = time.perf_counter()
    transport.write(message)
    try:
        await stream.ended.wait()
    finally:
        transport.abort()


async def _watch(endpoint: Endpoint, streams: Sequence[_Stream]) -> None:
    """End streams that wait too long. One task for all: a timer for each would take time from the reading."""
    while True:
        await asyncio.sleep(_WATCH_EVERY_S)
        now_s = time.perf_counter()
        for stream in streams:
            if stream.sent_at_s and not stream.ended.is_set():
                stream.failure = _overdue(stream, endpoint, now_s)
                if stream.failure is not None:
                    stream.ended.set()


def _overdue(stream: _Stream, endpoint: Endpoint, now_s: float) -> TransportError | None:
    last_s = stream.reads[-1][0] if stream.reads else stream.sent_at_s
    if now_s - last_s > endpoint.idle_timeout_s:
        return TransportError("timeout", f"{endpoint.base_url} sent nothing for {endpoint.idle_timeout_s:g} s")
    if now_s - stream.sent_at_s > endpoint.total_timeout_s:
        return TransportError("timeout", f"no complete answer in {endpoint.total_timeout_s:g} s")
    if stream.size_bytes > _MAX_REPLY_BYTES:
        return TransportError("protocol", f"a stream sent more than {_MAX_REPLY_BYTES} bytes")
    return None


def _answer(stream: _Stream, endpoint: Endpoint) -> Answer | TransportError:
    if stream.failure is not None:
        return stream.failure
    if not stream.reads:
        return TransportError("broken", f"{endpoint.base_url} closed the connection before it answered")
    try:
        reply = read_reply(stream.reads, closed=stream.closed)
        if reply.status != 200:
            return http_error(reply.status, reply.body, endpoint)
        return read_stream(reply.pieces, endpoint, stream.sent_at_s, lambda _: False)
    except FramingError as error:
        return TransportError("protocol", f"{endpoint.base_url} does not speak HTTP as expected ({error})")
    except TransportError as error:
        return error


def _message(endpoint: Endpoint, request: Request) -> bytes:
    """The bytes of one POST; `Connection: close` makes the end of the reply the end of the connection."""
    parts = urlsplit(endpoint.base_url)
    body = json.dumps(request.body(stream=True)).encode("ascii")
    lines = [
        f"POST {parts.path}{request.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Accept: text/event-stream",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if endpoint.api_key is not None:
        lines.append(f"Authorization: Bearer {endpoint.api_key}")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


@contextmanager
def _no_collector() -> Iterator[None]:
    """A collection in the middle of a stream would be read as a gap of the server's."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
