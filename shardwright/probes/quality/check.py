"""What a check of the quality probe is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwright.probes.quality.ask import Asker, Exchange
from shardwright.probes.quality.views import Judgement

Role = Literal["engine", "model"]
Category = Literal["text", "sampling", "stream", "knowledge", "copy", "tools", "responses", "reasoning"]


@dataclass(frozen=True)
class Check:
    """One question to a server with a judge for what came back.

    `role` says who is to blame: a check of the engine holds for any model, one of the model needs a capable one.
    `judge` sees only exchanges as they are on file, so that a stored trial can be judged again.
    """

    id: str
    category: Category
    role: Role
    says_no: str
    """When the check fails, for the reader of a report."""
    ask: Callable[[Asker], None]
    judge: Callable[[Sequence[Exchange]], Judgement]
    needs: str = ""
    """What the server must have for it: tools, responses, reasoning; empty where every server must."""
