"""Ask a running server and judge the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.probes.report import Judged


def classify(trial: Mapping[str, Any] | str | bytes) -> Judged:
    """The outcome of one stored trial of any probe: its class, the ground for it, and what it says of the model.

    `trial` is a record or its JSON line. Raises UsageError where it is none. See `shardwright.probes.judging`.
    """
    from shardwright.probes import judging

    return judging.classify(trial)
