"""A server that streams at an exact pace and writes into each event when it was sent, to measure clients with.

All streams get their next event in one turn, as they do from the steps of an engine. The text of an event is the time
of its sending in nanoseconds of the monotonic clock, which all processes of a host share.

python -m shardwright.probes.faulty.pacer PERIOD_S EVENTS   prints its port and serves until its input ends
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

MODEL = "pacer"
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Cache-Control: no-cache\r\n\r\n"
)


class _Beat:
    """Calls every stream once in each period, without drifting."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self.streams: list[_Stream] = []

    async def run(self) -> None:
        next_s = time.perf_counter()
        while True:
            next_s += self._period_s
            await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
            if time.perf_counter() > next_s + self._period_s:
                next_s = time.perf_counter()
            self.streams = [stream for stream in self.streams if stream.beat()]


class _Stream:
    """One answer on its way."""

    def __init__(self, transport: asyncio.Transport, body: dict[str, object], events: int) -> None:
        self._transport = transport
        self._chat = "messages" in body
        self._left = events
        self._made = 0
        transport.write(_HEAD)
        if self._chat:
            self._send({"delta": {"role": "assistant", "content": ""}})

    def beat(self) -> bool:
        """Send the next event; False once the answer is over."""
        if self._transport.is_closing():
            return False
        if self._left:
            self._left -= 1
            self._made += 1
            text = f"{time.perf_counter_ns()} "
            self._send({"delta": {"content": text}} if self._chat else {"text": text})
            return True
        self._send({"delta": {}, "finish_reason": "stop"} if self._chat else {"text": "", "finish_reason": "stop"})
        usage = {"prompt_tokens": 1, "completion_tokens": self._made, "total_tokens": self._made + 1}
        self._chunk(json.dumps({"id": "p", "choices": [], "usage": usage}).encode())
        self._chunk(b"[DONE]")
        self._transport.write(b"0\r\n\r\n")
        return False

    def _send(self, content: dict[str, object]) -> None:
        choice = {"index": 0, "logprobs": None, "finish_reason": None, **content}
        event = {"id": "cmpl-pacer", "object": "chunk", "created": 0, "model": MODEL, "choices": [choice]}
        self._chunk(json.dumps(event).encode())

    def _chunk(self, data: bytes) -> None:
        data = b"data: " + data + b"\n\n"
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class _Connection(asyncio.Protocol):
    def __init__(self, beat: _Beat, events: int) -> None:
        self._beat = beat
        self._events = events
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            size_bytes = int(length.group(1)) if length else 0
            if len(rest) < size_bytes:
                return
            self._buffer = rest[size_bytes:]
            if head.startswith(b"POST"):
                body = json.loads(rest[:size_bytes])
                self._beat.streams.append(_Stream(self._transport, body, self._events))
            else:
                content = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
                self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))


async def _serve(period_s: float, events: int) -> None:
    loop = asyncio.get_running_loop()
    beat = _Beat(period_s)
    server = await loop.create_server(lambda: _Connection(beat, events), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    beating = loop.create_task(beat.run())
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    beating.cancel()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), int(sys.argv[2])))
