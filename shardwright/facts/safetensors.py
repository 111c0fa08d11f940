"""Headers of safetensors files, read raw and checked whole; the weights themselves are never read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from shardwright.errors import DeployError

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format's own library."""

_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class TensorHeader(Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


class ShardHeader(Struct, frozen=True):
    tensors: tuple[TensorHeader, ...]
    read_bytes: int
    """Bytes read from disk: the header and its length."""


def read_headers(file: Path, shown: str) -> ShardHeader:
    """All tensors of one file from its header: 8 bytes of little-endian length, then JSON.

    Checked as the format's library checks: known dtypes, dtype x shape equals the byte range, ranges follow each other
    without gap, and end where the file ends. Raises DeployError naming the file and the tensor.
    """
    try:
        with file.open("rb") as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(MAX_HEADER_BYTES, file_bytes - 8):
                raise _broken(shown, "its header is longer than the file or the format allows")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise DeployError(f"{shown} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        raise _broken(shown, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _broken(shown, "its header is not a JSON object")
    return ShardHeader(tuple(_checked(header, file_bytes - 8 - length, shown)), 8 + length)


def tensor_bytes(dtype: str, shape: Sequence[Any]) -> int | None:
    """Bytes of a tensor; None for an unknown dtype or a shape that is none."""
    bits = _BITS.get(dtype)
    if bits is None or any(isinstance(extent, bool) or not isinstance(extent, int) or extent < 0 for extent in shape):
        return None
    for extent in shape:
        bits *= extent
    return bits // 8


def _checked(header: dict[str, Any], data_bytes: int, shown: str) -> Iterator[TensorHeader]:
    header.pop("__metadata__", None)
    position = 0
    try:
        entries = sorted(header.items(), key=lambda entry: entry[1]["data_offsets"])
        for name, entry in entries:
            start, end = entry["data_offsets"]
            elements = 1
            for extent in entry["shape"]:
                elements *= extent
            if entry["dtype"] not in _BITS:
                raise _broken(shown, f"{name} has the unknown dtype {entry['dtype']}")
            if start != position or (end - start) * 8 != elements * _BITS[entry["dtype"]]:
                raise _broken(shown, f"the byte range of {name} does not fit its shape or its neighbours")
            position = end
            yield TensorHeader(name, entry["dtype"], tuple(entry["shape"]), end - start)
    except (KeyError, TypeError, ValueError):
        raise _broken(shown, "a tensor's entry does not read") from None
    if position != data_bytes:
        raise _broken(shown, f"its tensors take {position:,} bytes, but the file holds {data_bytes:,}")


def _broken(shown: str, what: str) -> DeployError:
    return DeployError(
        f"{shown} is not a whole safetensors file: {what}",
        why="the engine would fail on it minutes into the start, or load garbage",
        fix="download or copy it again",
    )
