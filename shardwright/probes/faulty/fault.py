"""What a fault is: its name, its place in public, how the server then behaves, and who must notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.probes.faulty.behaviour import Behaviour


@dataclass(frozen=True)
class Fault:
    """One fault. `expected` gives the right outcome by probe: a verdict, then the classes of which one must be seen."""

    id: str
    does: str
    seen: str
    behaviour: Behaviour
    expected: Mapping[str, str] = field(default_factory=dict)
