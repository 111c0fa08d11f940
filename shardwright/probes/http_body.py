"""Take a whole HTTP/1.1 reply, kept as stamped reads, apart into status and stamped pieces of its body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Read = tuple[float, bytes]
"""Time of arrival (seconds, monotonic) and what arrived."""

_HEAD_END = b"\r\n\r\n"


class FramingError(ValueError):
    """What came is no HTTP/1.1 reply."""


@dataclass(frozen=True)
class Head:
    """The head of a reply. `body_at` is the offset of its body; `length_bytes` None means chunked or until closed."""

    status: int
    body_at: int
    chunked: bool
    length_bytes: int | None


@dataclass(frozen=True)
class RawReply:
    """A reply as far as it came. `complete` is False where its framing says that more should have come."""

    status: int
    pieces: tuple[Read, ...]
    complete: bool

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)


def read_head(data: bytes) -> Head | None:
    """The head of the reply that `data` begins with; None until all of it has come. Raises FramingError."""
    start = 0
    while True:
        end = data.find(_HEAD_END, start)
        if end < 0:
            if data[start : start + 5] not in b"HTTP/":
                raise FramingError("it does not begin with HTTP/")
            return None
        first, *lines = data[start:end].split(b"\r\n")
        status = _status(first)
        start = end + len(_HEAD_END)
        if status >= 200:
            break
    fields = {}
    for line in lines:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()] = value.strip().lower()
    if fields.get(b"transfer-encoding", b"").endswith(b"chunked"):
        return Head(status, start, True, None)
    return Head(status, start, False, _count(fields[b"content-length"]) if b"content-length" in fields else None)


def read_reply(reads: Sequence[Read], *, closed: bool) -> RawReply:
    """Take the reads of one connection apart. `closed`: the server ended it. Raises FramingError."""
    data = b"".join(part for _, part in reads)
    head = read_head(data)
    if head is None:
        raise FramingError("its head never ended")
    if head.chunked:
        ranges, complete = _chunks(data, head.body_at)
    else:
        end = len(data) if head.length_bytes is None else min(len(data), head.body_at + head.length_bytes)
        ranges = [(head.body_at, end)]
        complete = closed if head.length_bytes is None else end == head.body_at + head.length_bytes
    return RawReply(head.status, tuple(_stamped(reads, ranges)), complete)


def _chunks(data: bytes, at: int) -> tuple[list[tuple[int, int]], bool]:
    """Offsets of the contents of the chunks, the last one cut where the data ends, and whether the end came."""
    ranges: list[tuple[int, int]] = []
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return ranges, False
        size = _count(data[at:line_end].partition(b";")[0].strip(), base=16)
        begin = line_end + 2
        if size == 0:
            # Trailers may follow; the reply ends with an empty line.
            return ranges, data[begin : begin + 2] == b"\r\n" or _HEAD_END in data[begin:]
        end = begin + size
        ranges.append((begin, min(end, len(data))))
        if len(data) < end + 2:
            return ranges, False
        if data[end : end + 2] != b"\r\n":
            raise FramingError("a chunk does not end where its length says")
        at = end + 2


def _stamped(reads: Sequence[Read], ranges: Sequence[tuple[int, int]]) -> Iterator[Read]:
    """The parts of each read that lie in the ranges; both are in order."""
    waiting = iter(ranges)
    span = next(waiting, None)
    offset = 0
    for stamp_s, data in reads:
        end = offset + len(data)
        parts = []
        while span is not None and span[0] < end:
            parts.append(data[max(span[0] - offset, 0) : span[1] - offset])
            if span[1] > end:
                break
            span = next(waiting, None)
        part = b"".join(parts)
        if part:
            yield stamp_s, part
        offset = end


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise FramingError("it does not begin with HTTP/1")
    return _count(rest[:3])


def _count(text: bytes, base: int = 10) -> int:
    try:
        if not text.isalnum():
            raise ValueError
        return int(text, base)
    except ValueError:
        raise FramingError("it holds a number that is none") from None
