"""What one request is answered with, before it is cut into tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Script:
    """The whole answer, as long as the model would make it with no limit."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
