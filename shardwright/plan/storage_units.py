"""Shards of one axis in the unit that a tensor stores it in: rows, packed bytes, scale groups.

An axis of N elements is stored as n units. Padding the axis to N x ratio pads the tensor to n x ratio, whatever the
unit is, as long as that is whole: one exact ratio serves weights and scales alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class NotWholeError(ValueError):
    """A padded size or a rank's share that is not a whole number of storage units."""


class RankShard(Struct, frozen=True):
    """What one rank takes of a tensor's axis: units [start, stop) of the checkpoint, then `zero_tail` units of padding.

    The tail reaches to the end of the rank's buffer, so it holds what the plan pads and what the kernel rounds up to.
    """

    rank: int
    start: int
    stop: int
    zero_tail: int

    @property
    def buffer(self) -> int:
        """Units of the rank's buffer."""
        return self.stop - self.start + self.zero_tail


def padded_units(units: int, original: int, virtual: int) -> int:
    """`units` after an axis of `original` elements grew to `virtual`. NotWholeError where that is no whole number."""
    if original <= 0 or units < 0:
        raise NotWholeError(f"an axis of {original} elements cannot be padded")
    whole, rest = divmod(units * virtual, original)
    if rest:
        raise NotWholeError(f"{units} units x {virtual}/{original} is not a whole number")
    return whole


def split_units(units: int, original: int, virtual: int, tp: int, kernel_local: int | None = None) -> list[RankShard]:
    """The shard of each of `tp` ranks, in storage units.

    `original` and `virtual` are the axis in elements, before and after padding. `kernel_local`, in elements, is what a
    rank's kernel rounds its share up to; None where the buffer is exactly the share.
    """
    local, rest = divmod(padded_units(units, original, virtual), tp)
    if rest:
        raise NotWholeError(f"{units} units padded by {virtual}/{original} do not split into {tp} ranks")
    buffer = local if kernel_local is None else padded_units(units, original, kernel_local)
    if buffer < local:
        raise NotWholeError(f"a buffer of {buffer} units does not hold a share of {local}")
    shards = []
    for rank in range(tp):
        start = min(rank * local, units)
        stop = min(start + local, units)
        shards.append(RankShard(rank, start, stop, buffer - (stop - start)))
    return shards


def rank_bytes(source: bytes, shard: RankShard, unit_bytes: int) -> bytes:
    """The bytes of one rank's buffer, cut from `source`, the axis of one row of the checkpoint tensor."""
    return source[shard.start * unit_bytes : shard.stop * unit_bytes] + bytes(shard.zero_tail * unit_bytes)


def reassembled(buffers: Sequence[bytes], shards: Sequence[RankShard], unit_bytes: int) -> bytes:
    """The real parts of all ranks' buffers in rank order; equal to the source when no byte was lost or read twice."""
    return b"".join(
        buffer[: (shard.stop - shard.start) * unit_bytes] for buffer, shard in zip(buffers, shards, strict=True)
    )
