"""Every probe that `deploy verify` may ask: how it runs on a deployment, and how its report is made from its trials.

The order is that of cost and decisiveness: the cheap ones that decide most stand first. Probe modules are imported by
the call that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from shardwright.probes.edges import Edges
    from shardwright.probes.journal import Journal, Record
    from shardwright.probes.report import ProbeReport
    from shardwright.probes.server import Server
    from shardwright.resolve.deployment import Deployment

Mode = Literal["quick", "default", "full"]
MODES: tuple[Mode, ...] = ("quick", "default", "full")


@dataclass(frozen=True)
class Asked:
    """What is asked of which server. `deployment` is None for a server that no layout of ours started.

    `control` holds the trials of another arm by probe name, for probes that compare.
    """

    server: Server
    deployment: Deployment | None
    edges: Edges
    mode: Mode
    control: Mapping[str, tuple[Record, ...]]

    @property
    def digest(self) -> str:
        """The digest of what was deployed, empty where it is not known."""
        return self.deployment.digest if self.deployment else ""

    @property
    def engine_only(self) -> bool:
        """Whether checks that need a capable model are left out."""
        return self.deployment is not None and self.deployment.probes.quality_engine_only

    @property
    def known_faults(self) -> tuple[tuple[str, str], ...]:
        """Quality checks that the layout knows to fail, each with the reason."""
        return self.deployment.probes.quality_known if self.deployment else ()


Say = Callable[[str], None]


@dataclass(frozen=True)
class Probe:
    """`run` asks and keeps trials; `recompute` makes the same report from the records alone."""

    name: str
    modes: frozenset[Mode]
    run: Callable[[Asked, Journal, Say], ProbeReport]
    recompute: Callable[[Iterable[Record], str], ProbeReport]


def _run_smoke(asked: Asked, journal: Journal, say: Say) -> ProbeReport:
    from shardwright.probes.smoke.report import run_smoke_recorded

    return run_smoke_recorded(
        asked.server.endpoint,
        asked.server.model,
        journal,
        lambda check: say(f"{check.status} {check.id}") if check.status == "FAIL" else None,
    )


def _smoke_again(records: Iterable[Record], plan_id: str) -> ProbeReport:
    from shardwright.probes.smoke.report import smoke_report_from

    return smoke_report_from(records, plan_id)


def _run_quality(asked: Asked, journal: Journal, say: Say) -> ProbeReport:
    from shardwright.probes.quality import plan as quality_plan
    from shardwright.probes.quality.run import run_quality

    make = quality_plan.full if asked.mode == "full" else quality_plan.quick
    plan = make(engine_only=asked.engine_only, known=asked.known_faults, deployment=asked.digest)
    say(plan.budget())
    return run_quality(asked.server, plan, journal)


def _quality_again(records: Iterable[Record], plan_id: str) -> ProbeReport:
    from shardwright.probes.quality.run import report_from

    return report_from(records, plan_id)


def _run_needle(asked: Asked, journal: Journal, say: Say) -> ProbeReport:
    from shardwright.probes.needle.plan import full_plan, quick_plan
    from shardwright.probes.needle.run import run_needle

    make = full_plan if asked.mode == "full" else quick_plan
    api: Literal["chat", "completions"] = "chat" if asked.server.capabilities.chat else "completions"
    wording = asked.deployment.probes.needle_wording if asked.deployment is not None else "access-code"
    plan = make(asked.edges, api=api, wording=wording, deployment=asked.digest)
    _announce(say, plan.budget(), plan.warning())
    return run_needle(asked.server, plan, journal)


def _needle_again(records: Iterable[Record], plan_id: str) -> ProbeReport:
    from shardwright.probes.needle.report import report_from

    return report_from(list(records), plan_id)


def _run_repeat(asked: Asked, journal: Journal, say: Say) -> ProbeReport:
    from shardwright.probes.repeat.run import full_plan, quick_plan, run_repeat

    plan = (full_plan if asked.mode == "full" else quick_plan)(asked.edges, deployment=asked.digest)
    _announce(say, plan.budget(), plan.warning())
    return run_repeat(asked.server, plan, journal)


def _repeat_again(records: Iterable[Record], plan_id: str) -> ProbeReport:
    from shardwright.probes.repeat.report import report_from

    return report_from(list(records), plan_id)


def _run_parity(asked: Asked, journal: Journal, say: Say) -> ProbeReport:
    from shardwright.probes.parity.plan import full_plan, quick_plan
    from shardwright.probes.parity.run import run_parity

    plan = (full_plan if asked.mode == "full" else quick_plan)(asked.edges, deployment=asked.digest)
    say(plan.budget())
    return run_parity(asked.server, plan, journal)


def _parity_again(records: Iterable[Record], plan_id: str) -> ProbeReport:
    from shardwright.probes.parity.report import report_from

    return report_from(list(records), plan_id)


def _run_degen(asked: Asked, journal: Journal, say: Say) -> ProbeReport:
    from shardwright.probes.degen.plan import short_plan
    from shardwright.probes.degen.prompts import ROTATION, own_prompts
    from shardwright.probes.degen.run import run_degen

    settings = asked.deployment.probes if asked.deployment else None
    own = settings.degen_prompts if settings else ()
    chat = asked.server.capabilities.chat and (settings is None or settings.degen_api == "chat")
    plan = short_plan("chat" if chat else "completions", asked.digest, own_prompts(own) if own else ROTATION)
    say(plan.budget())
    return run_degen(asked.server, plan, journal, concurrency=_AT_A_TIME, control=asked.control.get("degen", ()))


def _run_degen_long(asked: Asked, journal: Journal, say: Say) -> ProbeReport:
    from shardwright.probes.degen.plan import long_plan
    from shardwright.probes.degen.run import run_degen

    plan = long_plan(asked.digest, asked.server.capabilities.max_model_len)
    say(plan.budget())
    control = asked.control.get("degen-long", ())
    return replace(run_degen(asked.server, plan, journal, concurrency=_AT_A_TIME, control=control), probe="degen-long")


def _degen_again(records: Iterable[Record], plan_id: str) -> ProbeReport:
    from shardwright.probes.degen.report import report_from

    return report_from(list(records), plan_id)


def _degen_long_again(records: Iterable[Record], plan_id: str) -> ProbeReport:
    return replace(_degen_again(records, plan_id), probe="degen-long")


def _run_speed(asked: Asked, journal: Journal, say: Say) -> ProbeReport:
    from shardwright.probes.speed import plan as speed_plan
    from shardwright.probes.speed.run import run_speed

    make = {"quick": speed_plan.quick, "default": speed_plan.default, "full": speed_plan.full}[asked.mode]
    plan = make(api="chat" if asked.server.capabilities.chat else "completions", deployment=asked.digest)
    if asked.deployment is not None:
        plan = speed_plan.as_declared(plan, asked.deployment.probes.speed)
    say(plan.budget())
    return run_speed(asked.server, plan, journal)


def _speed_again(records: Iterable[Record], plan_id: str) -> ProbeReport:
    from shardwright.probes.speed.report import report_from

    return report_from(list(records), plan_id)


def _announce(say: Say, budget: str, warning: str | None) -> None:
    say(budget)
    if warning:
        say(f"warning: {warning}")


_ALL = frozenset(MODES)
_AT_A_TIME = 8
"""Short trials at a time: some faults show only under load, and the plan asks a fifth of them alone."""
_LONGER: frozenset[Mode] = frozenset(("default", "full"))

PROBES: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (
        Probe("smoke", _ALL, _run_smoke, _smoke_again),
        Probe("repeat", _ALL, _run_repeat, _repeat_again),
        Probe("quality", _ALL, _run_quality, _quality_again),
        Probe("degen", _ALL, _run_degen, _degen_again),
        Probe("needle", _ALL, _run_needle, _needle_again),
        Probe("speed", _LONGER, _run_speed, _speed_again),
        Probe("parity", _LONGER, _run_parity, _parity_again),
        Probe("degen-long", frozenset(("full",)), _run_degen_long, _degen_long_again),
    )
}


def asked_in(mode: Mode) -> tuple[Probe, ...]:
    """The probes of a mode in their order."""
    return tuple(probe for probe in PROBES.values() if mode in probe.modes)
