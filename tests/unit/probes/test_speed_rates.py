"""How often speed is wrong about a trial, a draft head or a pair of runs: 200 healthy and 200 faulty of each."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.probes import classify
from shardwright.probes.faulty import misbehave as m
from shardwright.probes.faulty.behaviour import Behaviour, Event, Situation
from shardwright.probes.faulty.faults import behaviour_of
from shardwright.probes.faulty.generated import Generated
from shardwright.probes.faulty.script import Script
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.server import identify
from shardwright.probes.speed import run as speed_run
from shardwright.probes.speed.compare import compare_speed
from shardwright.probes.speed.plan import SpeedPlan
from shardwright.probes.speed.report import report_from
from shardwright.probes.stats import clopper_pearson_upper
from shardwright.probes.stored import plan_record, read_records
from shardwright.probes.wire import Endpoint

pytestmark = pytest.mark.slow

TRIALS = 200
_BOUND = 0.0149
"""What 0 of 200 gives; one mistake would be 2.35 %."""
_NO_TRIALS = SpeedPlan((), 0, 40, ("greedy",), (), 0, prompts=("narrative",), warm_up_least=1, warm_up_most=1)
_OF_FAULTY = 30


def half(generated: Generated, _: Situation) -> Generated:
    """The answer ends by itself, whatever was asked."""
    return replace(generated, text=generated.text[: len(generated.text) // 2], finish="stop")


def slow_when_short(script: Script, s: Situation) -> Script:
    """A short prompt waits, so that a long one seems to cost nothing."""
    time.sleep(0.1 if s.prompt_tokens < 100 else 0)
    return script


def one_more(events: list[Event], _: Situation) -> list[Event]:
    """Usage counts a token that never came."""
    return [m.wrong_usage(event) for event in events]


def joined(size: int) -> Callable[[list[Event], Situation], list[Event]]:
    """So many events of text come as one."""

    def join(events: list[Event], _: Situation) -> list[Event]:
        said = [event for event in events if event["choices"] and event["choices"][0]["delta"].get("content")]
        for place in range(0, len(said), size):
            parts = [event["choices"][0] for event in said[place : place + size]]
            parts[0]["delta"]["content"] = "".join(part["delta"]["content"] for part in parts)
            parts[0]["token_ids"] = [token for part in parts for token in part["token_ids"]]
        merged = {id(event) for place, event in enumerate(said) if place % size}
        return [event for event in events if id(event) not in merged]

    return join


@dataclass(frozen=True)
class Fault:
    """One class of a speed trial: in which kind of trial it is seen, and on which server."""

    test: str
    behaviour: Behaviour = field(default_factory=Behaviour)
    server: Mapping[str, Any] = field(default_factory=lambda: {"step_s": 0.001})
    gap_error: float = 0.01


FAULTS = {
    "CONTAMINATED": Fault("decode", Behaviour(events=one_more)),
    "STEPS_DISAGREE": Fault("decode", Behaviour(events=joined(2)), {"step_s": 0.02, "speculative": True}),
    "SHORT": Fault("decode", Behaviour(generated=half)),
    "NO_OVERLAP": Fault("decode", Behaviour(events=joined(1000))),
    "CACHE_HIT": Fault("prefill", behaviour_of("salt-ignored"), {"prefill_s_per_token": 1e-3}),
    "TOO_FAST": Fault("prefill", Behaviour(script=slow_when_short)),
    "CLIENT_LIMITED": Fault("self-check", gap_error=0.2),
}
HEALTHY = {"step_s": 0.02, "prefill_s_per_token": 2e-3}
"""Slow enough that a busy machine does not look like a fault of the server."""


def plans(test: str, count: int) -> Iterator[SpeedPlan]:
    """Plans that make so many trials of one kind; a run checks its client once."""
    if test == "decode":
        yield replace(_NO_TRIALS, concurrencies=(2,), rounds=count)
    elif test == "prefill":
        yield replace(_NO_TRIALS, prefill_tokens=(200,), prefill_rounds=count)
    else:
        yield from (replace(_NO_TRIALS, concurrencies=(2,), deployment=str(number)) for number in range(count))


def recorded(fault: Fault, count: int, file: Path) -> list[str]:
    """Lines of trials of the fault's kind, from a server that has it in every answer."""
    with FaultyServer(**fault.server) as server, Journal(file) as journal:
        server.behaviour = server.engine.behaviour = fault.behaviour
        known = identify(Endpoint(server.base_url), None)
        for plan in plans(fault.test, count):
            speed_run.run_speed(known, plan, journal, gap_error=lambda *_: fault.gap_error)
    lines = [line for line in file.read_text().splitlines() if line.startswith('{"kind": "trial"')]
    return [line for line in lines if json.loads(line)["test"] == fault.test]


@pytest.mark.parametrize("test", ["decode", "prefill", "self-check"])
def test_no_healthy_trial_is_called_faulty(test: str, tmp_path: Path) -> None:
    lines = recorded(Fault(test, server=HEALTHY), TRIALS // 3 + 1, tmp_path / "t.jsonl")
    alarms = [judged for judged in map(classify, lines) if judged.outcome != "OK"]
    assert (len(lines), alarms) == (TRIALS // 3 + 1, [])
    assert clopper_pearson_upper(len(alarms), 3 * len(lines)) <= _BOUND


def test_no_faulty_trial_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missed: list[str] = []
    count = 0
    lag_s = speed_run._COUNTERS_LAG_S
    for wanted, fault in FAULTS.items():
        # Only counters that never agree are waited for in vain; all others get their time on a busy machine too.
        monkeypatch.setattr(speed_run, "_COUNTERS_LAG_S", 0.1 if wanted == "CONTAMINATED" else lag_s)
        for line in recorded(fault, _OF_FAULTY, tmp_path / f"{wanted}.jsonl"):
            judged = classify(line)
            count += 1
            if judged.outcome != wanted:
                missed.append(f"{wanted}: {judged}")
    assert count >= TRIALS
    assert (missed[:5], clopper_pearson_upper(len(missed), count) <= _BOUND) == ([], True)


def verdicts_on_rounds(behaviour: Behaviour, file: Path) -> list[str]:
    """The verdicts on each round of a server that speculates, as if it were all that was measured."""
    plan = replace(_NO_TRIALS, concurrencies=(1,), rounds=TRIALS // 2, prompts=("narrative", "copy"), max_tokens=250)
    with FaultyServer(speculative=True, step_s=0.001) as server, Journal(file) as journal:
        server.behaviour = server.engine.behaviour = behaviour
        speed_run.run_speed(identify(Endpoint(server.base_url), None), plan, journal, gap_error=lambda *_: 0.0)
    records = read_records(file)
    header = plan_record(records)
    assert header is not None
    rounds = [record for record in records if record["kind"] == "trial" and record["test"] == "decode"]
    return [
        report_from([{**header, "trials": [record["trial"]]}, record], str(header["plan"])).verdict for record in rounds
    ]


def test_no_working_draft_head_is_blamed(tmp_path: Path) -> None:
    found = verdicts_on_rounds(Behaviour(), tmp_path / "t.jsonl")
    alarms = found.count("FAIL")
    assert (len(found), alarms, clopper_pearson_upper(alarms, TRIALS) <= _BOUND) == (TRIALS, 0, True)


def test_no_dead_draft_head_is_missed(tmp_path: Path) -> None:
    found = verdicts_on_rounds(behaviour_of("acceptance-drop"), tmp_path / "t.jsonl")
    missed = found.count("PASS")
    assert (len(found), missed, clopper_pearson_upper(missed, TRIALS) <= _BOUND) == (TRIALS, 0, True)
    assert found.count("FAIL") >= 0.97 * TRIALS, "a few rounds may hold too few drafts to be sure, not more"


def row(step_ms: float, draw: random.Random) -> dict[str, Any]:
    """Five rounds that scatter by 1 %, as one boot of a quiet host does."""
    from statistics import fmean, median, stdev

    steps = [draw.gauss(step_ms, 0.01 * step_ms) for _ in range(5)]
    common = {"test": "decode", "prompt": "narrative", "sampler": "greedy", "concurrency": 1, "max_tokens": 256}
    measured = {"step_ms": median(steps), "step_ms_cv": stdev(steps) / fmean(steps), "rounds": 5, "status": "OK"}
    return common | measured


@pytest.mark.parametrize(("slower", "wrong"), [(0.0, "FAIL"), (0.06, "PASS")])
def test_pairs_of_runs_are_told_apart(slower: float, wrong: str) -> None:
    draw = random.Random(1)
    found: list[str] = []
    for _ in range(TRIALS):
        (step,) = [
            verdict
            for verdict in compare_speed([row(14.0, draw)], [row(14.0 * (1 + slower), draw)])
            if verdict.metric.startswith("step_ms")
        ]
        found.append(step.verdict)
    assert clopper_pearson_upper(found.count(wrong), TRIALS) <= _BOUND, found
