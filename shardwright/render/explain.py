"""Who set what: one row per argv token, env pair and mount."""

from __future__ import annotations

from msgspec import Struct

from shardwright.render.command import RenderedCommand


class ExplainRow(Struct, frozen=True):
    kind: str
    tokens: str
    origin: str


def explain_rows(command: RenderedCommand) -> tuple[ExplainRow, ...]:
    """The parts of a command in argv order; together their tokens are the whole command line."""
    return tuple(ExplainRow(part.kind, " ".join(part.tokens), str(part.origin)) for part in command.parts)
