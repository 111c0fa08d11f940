"""Server-sent events, cut from bytes. Only the byte 0x0A ends a line: U+2028 and U+0085 may stand inside JSON."""

from __future__ import annotations

MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventSplitter:
    """Collects bytes as they arrive and gives the `data` of each event once its blank line has come."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that `chunk` completes. Raises ValueError for an event larger than MAX_EVENT_BYTES."""
        self._rest += chunk
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(bytes(line[5:].removeprefix(b" ")))
                self._size_bytes += len(line)
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size_bytes = [], 0
        if self._size_bytes + len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return events
