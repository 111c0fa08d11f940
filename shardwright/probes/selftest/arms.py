"""How the self-test runs each probe: small plans, small sizes, and what the probe then says in one shape."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright.errors import DeployError
from shardwright.probes.degen.plan import DegenPlan
from shardwright.probes.degen.prompts import ROTATION
from shardwright.probes.degen.run import run_degen
from shardwright.probes.edges import Edges
from shardwright.probes.faulty.behaviour import Sizes
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.needle.plan import own_plan
from shardwright.probes.needle.run import run_needle
from shardwright.probes.parity.plan import ParityPlan
from shardwright.probes.parity.report import compare
from shardwright.probes.parity.run import run_parity
from shardwright.probes.quality.plan import QualityPlan
from shardwright.probes.quality.run import run_quality
from shardwright.probes.repeat.run import RepeatPlan, run_repeat
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import identify
from shardwright.probes.smoke.run import run_smoke
from shardwright.probes.speed.plan import SpeedPlan
from shardwright.probes.speed.run import run_speed
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint

HEALTHY = "healthy"
SIZES = Sizes(index_topk=512, deep=1024, max_model_len=16_384)
_STALL_S, _PATIENCE_S = 1.0, 30.0
"""A server that stalls is given up soon; any other may be slow on a busy machine."""
_LONG_TOKENS = 1500


@dataclass(frozen=True)
class Observed:
    """What a probe said. `seen` are the classes of its trials, or the ids of its failed checks."""

    verdict: str
    seen: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arm:
    """One probe in the self-test: the server that it needs, and how it is run."""

    run: Callable[[FaultyServer, Path, int], Observed]
    server: Mapping[str, Any] = field(default_factory=dict)


def observe(probe: str, mode: str, seed: int) -> Observed:
    """Run one probe against a server in this mode. A refusal by the probe with the harness's exit code is a FAULT."""
    arm = ARMS[probe]
    with FaultyServer(mode, seed, sizes=SIZES, **arm.server) as server, tempfile.TemporaryDirectory() as folder:
        try:
            return arm.run(server, Path(folder) / "trials.jsonl", seed)
        except DeployError as error:
            return Observed("FAULT" if error.code == 4 else "REFUSED", (), (error.what,))


def _endpoint(server: FaultyServer) -> Endpoint:
    idle_s = _STALL_S if server.behaviour.wire == "stall" else _PATIENCE_S
    return Endpoint(server.base_url, connect_timeout_s=5.0, idle_timeout_s=idle_s, total_timeout_s=60.0)


def _smoke(server: FaultyServer, _: Path, __: int) -> Observed:
    result = run_smoke(_endpoint(server), None)
    failed = tuple(check.id for check in result.checks if check.status == "FAIL")
    return Observed(result.verdict, failed)


def _degen(server: FaultyServer, file: Path, _: int) -> Observed:
    known = identify(_endpoint(server), None)
    plan = DegenPlan(ROTATION, 25, "chat", 300, spread=8, agent_trials=8, long_trials=6, long_max_tokens=1200)
    with Journal(file) as journal:
        return _reported(run_degen(known, plan, journal))


def _needle(server: FaultyServer, file: Path, seed: int) -> Observed:
    edges = Edges(block=16, index_topk=SIZES.index_topk, max_len=SIZES.max_model_len)
    lengths = (256, 257, 258, 259, SIZES.index_topk, SIZES.index_topk + 1, SIZES.deep + 200)
    plan = own_plan(edges, lengths, (0, 50, 100), seeds=(seed,))
    with Journal(file) as journal:
        return _reported(run_needle(identify(_endpoint(server), None), plan, journal))


def _quality(server: FaultyServer, file: Path, _: int) -> Observed:
    plan = QualityPlan(echo_trials=8, tool_trials=1, max_tokens=600)
    with Journal(file) as journal:
        report = run_quality(identify(_endpoint(server), None), plan, journal)
    failed = (row["trial"].partition("#")[0] for row in report.numbers["checks"] if row["class"] == "FAIL")
    return Observed(report.verdict, tuple(dict.fromkeys(failed)), report.reasons)


def _parity(server: FaultyServer, file: Path, seed: int) -> Observed:
    """Record a healthy server, then this one, and compare."""
    plan = ParityPlan((128, 128, 128, SIZES.index_topk + 128), 16, top=5, index_topk=SIZES.index_topk)
    with FaultyServer(HEALTHY, seed, sizes=SIZES) as reference, Journal(file.with_name("reference.jsonl")) as journal:
        run_parity(identify(_endpoint(reference), None), plan, journal)
    with Journal(file) as journal:
        run_parity(identify(_endpoint(server), None), plan, journal)
    report = compare(read_records(file.with_name("reference.jsonl")), read_records(file))
    return _reported(report)


def _repeat(server: FaultyServer, file: Path, _: int) -> Observed:
    beyond = SIZES.index_topk + 128
    plan = RepeatPlan((beyond, beyond + 128), (64, beyond), index_topk=SIZES.index_topk, answer_tokens=16)
    with Journal(file) as journal:
        return _reported(run_repeat(identify(_endpoint(server), None), plan, journal))


def _speed(server: FaultyServer, file: Path, _: int) -> Observed:
    """The client itself is not checked here: `selftest --client-overhead` does that, alone on the machine."""
    plan = SpeedPlan(
        concurrencies=(1, 2),
        rounds=2,
        max_tokens=64,
        samplers=("greedy",),
        prefill_tokens=(300,),
        prefill_rounds=2,
        prompts=("narrative", "copy"),
        warm_up_least=2,
        warm_up_most=2,
        settle_share=1.0,
    )
    with Journal(file) as journal:
        return _reported(run_speed(identify(_endpoint(server), None), plan, journal, gap_error=lambda *_: 0.0))


def _reported(report: ProbeReport) -> Observed:
    return Observed(report.verdict, tuple(str(name) for name in report.classes), report.reasons)


ARMS: Mapping[str, Arm] = {
    "smoke": Arm(_smoke),
    "degen": Arm(_degen),
    "needle": Arm(_needle),
    "quality": Arm(_quality),
    "parity": Arm(_parity),
    "repeat": Arm(_repeat),
    "speed": Arm(_speed, {"step_s": 0.01, "prefill_s_per_token": 5e-4, "speculative": True}),
}
"""Every probe of the self-test, in the order of its columns."""
