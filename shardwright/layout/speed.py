"""The `probes.speed` key of a layout: how much the speed probe asks of this deployment, and how its host scatters."""

from __future__ import annotations

from msgspec import Struct

from shardwright.connect.decode import Section


class SpeedSettings(Struct, frozen=True):
    """What `deploy verify` measures in place of its mode's own; None leaves that as it is.

    `scatter`: the share by which equal rounds of this host differ. A warm-up has settled within it, and a candidate is
    slower only beyond it; the probe's own 2 % and 3 % are for a host that does nothing else.
    """

    streams: tuple[int, ...] | None = None
    rounds: int | None = None
    max_tokens: int | None = None
    scatter: float | None = None


def decode_speed(section: Section) -> SpeedSettings:
    """Decode `probes.speed`. Raises UsageError naming file, line and key."""
    settings = SpeedSettings(
        streams=_streams(section) if section.has("streams") else None,
        rounds=section.integer("rounds", minimum=2) if section.has("rounds") else None,
        max_tokens=section.integer("max_tokens", minimum=16) if section.has("max_tokens") else None,
        scatter=section.number("scatter", above=0) if section.has("scatter") else None,
    )
    if settings.scatter is not None and settings.scatter >= 1:
        raise section.error(
            "scatter",
            f"{settings.scatter:g} is not a share below 1",
            why="rounds that differ that much compare nothing",
            fix="measure it: deploy speed shows the scatter of its rounds as CV",
        )
    section.finish()
    return settings


def _streams(section: Section) -> tuple[int, ...]:
    streams = tuple(int(count) for count in section.numbers("streams", whole=True))
    if not streams or min(streams) < 1 or list(streams) != sorted(set(streams)):
        raise section.error("streams", "not a rising list of at least one number", fix="write streams: [1, 4]")
    return streams
