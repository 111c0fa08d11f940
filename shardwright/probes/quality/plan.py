"""Which checks of the quality probe are asked, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardwright.errors import UsageError
from shardwright.probes.quality import engine as quality_engine
from shardwright.probes.quality import forced as quality_forced
from shardwright.probes.quality import model as quality_model
from shardwright.probes.quality import reasoning as quality_reasoning
from shardwright.probes.quality import responses as quality_responses
from shardwright.probes.quality import stream as quality_stream
from shardwright.probes.quality import tools as quality_tools
from shardwright.probes.quality.check import Check
from shardwright.probes.server import Server

CHECKS: Mapping[str, Check] = {
    check.id: check
    for check in (
        *quality_engine.CHECKS,
        *quality_stream.CHECKS,
        *quality_model.CHECKS,
        *quality_tools.CHECKS,
        *quality_forced.CHECKS,
        *quality_responses.CHECKS,
        *quality_reasoning.CHECKS,
        quality_model.ECHO_ALONE,
        quality_model.ECHO_BESIDE,
    )
}
"""Every check by its stable id, in the order in which they run."""

CATEGORIES = tuple(dict.fromkeys(check.category for check in CHECKS.values()))
NEEDS = ("tools", "responses", "reasoning")
BESIDE = 8
"""How many echo trials of `echo-c8` run at a time."""

REPEATED = "tool-auto"
_ECHOES = (quality_model.ECHO_ALONE.id, quality_model.ECHO_BESIDE.id)
_REQUESTS_PER_CHECK = 2


@dataclass(frozen=True)
class QualityPlan:
    """What is asked. `deployment` is the digest of what was deployed, empty where it is not known.

    `required` names what the server must have; without it a check that needs it is not applicable. `engine_only`
    leaves out what needs a capable model. `known` names checks that are known to fail, each with the reason: they are
    asked and told, but not held against the deployment. Raises UsageError where it names no check.
    """

    echo_trials: int
    tool_trials: int
    max_tokens: int = 1024
    engine_only: bool = False
    skip: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    known: tuple[tuple[str, str], ...] = ()
    deployment: str = ""

    def __post_init__(self) -> None:
        for name, _ in self.known:
            if name not in CHECKS:
                raise UsageError(
                    f"there is no quality check {name!r}, but probes.quality.known names it",
                    fix="docs/probes.md lists the checks",
                )

    def checks(self) -> list[Check]:
        """The checks that are asked at least once."""
        return [
            check
            for check in CHECKS.values()
            if check.category not in self.skip and not (self.engine_only and check.role == "model")
        ]

    def trials(self) -> list[str]:
        """Keys of all trials: the id of the check, with `#n` where it is asked several times."""
        keys = []
        for check in self.checks():
            if check.id in _ECHOES:
                keys += [f"{check.id}#{n}" for n in range(self.echo_trials)]
            elif check.id == REPEATED:
                keys += [f"{check.id}#{n}" for n in range(self.tool_trials)]
            else:
                keys.append(check.id)
        return keys

    def budget(self) -> str:
        """What it costs at most, for the reader."""
        requests = len(self.trials()) * _REQUESTS_PER_CHECK
        return (
            f"{len(self.checks())} checks in {len(self.trials())} trials, about {requests} requests of at most "
            f"{self.max_tokens} tokens each"
        )

    def id(self, server: Server) -> str:
        """Names this plan on this boot of this server."""
        import hashlib
        import json

        content = asdict(self) | {"checks": self.trials(), "server": server.record()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def quick(**changes: Any) -> QualityPlan:
    """Every check once; 40 random ids alone and 40 beside others."""
    return replace(QualityPlan(echo_trials=5, tool_trials=1), **changes)


def full(**changes: Any) -> QualityPlan:
    """160 random ids alone and 160 beside others, 20 tool calls."""
    return replace(QualityPlan(echo_trials=20, tool_trials=20), **changes)


def check_of(trial: str) -> Check | None:
    """The check that a trial's key names; None for a key that no version of the probe gave."""
    return CHECKS.get(id_of(trial))


def id_of(trial: str) -> str:
    """The id of the check in a trial's key."""
    return trial.partition("#")[0]


def number_of(trial: str) -> int:
    """The number behind `#`, 0 where there is none."""
    return int(trial.partition("#")[2] or 0)
