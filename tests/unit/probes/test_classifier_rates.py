"""False alarms and misses of each classifier: 200 healthy and 200 faulty trials on file, judged from their lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.probes import classify
from shardwright.probes.degen.plan import DegenPlan
from shardwright.probes.degen.prompts import ROTATION
from shardwright.probes.degen.run import run_degen
from shardwright.probes.edges import Edges
from shardwright.probes.faulty import misbehave as m
from shardwright.probes.faulty.behaviour import Behaviour, Event, Situation, Sizes
from shardwright.probes.faulty.faults import behaviour_of
from shardwright.probes.faulty.script import Script
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.needle.plan import own_plan
from shardwright.probes.needle.run import run_needle
from shardwright.probes.parity.plan import ParityPlan
from shardwright.probes.parity.run import run_parity
from shardwright.probes.quality.plan import CATEGORIES, QualityPlan
from shardwright.probes.quality.run import run_quality
from shardwright.probes.repeat.run import RepeatPlan, run_repeat
from shardwright.probes.server import Server, identify
from shardwright.probes.stats import clopper_pearson_upper
from shardwright.probes.wire import Endpoint

TRIALS = 200
_TOPK = 32
_BOUND = 0.0149
"""What 0 of 200 gives; one mistake would be 2.35 %."""


def damaged(script: Script, _: Situation) -> Script:
    """Every copied line loses one character."""
    return replace(script, text="\n".join(line[:-2] + line[-1:] for line in script.text.split("\n")))


def no_number(event: Event, s: Situation) -> Event:
    """The last logprob of a scored prompt is NaN."""
    if s.asked.body.get("prompt_logprobs") is not None:
        for entry in event["choices"][0]["prompt_logprobs"][-1].values():
            entry["logprob"] = float("nan")
    return event


def degen(server: Server, journal: Journal, part: int) -> None:
    run_degen(server, DegenPlan(ROTATION, TRIALS // part, "chat", 300), journal, concurrency=4)


def needle(server: Server, journal: Journal, part: int) -> None:
    edges = Edges(max_len=4096)
    cells = replace(own_plan(edges, (220,), (50,), seeds=range(TRIALS // part // 2)), concurrent_cells=())
    run_needle(server, cells, journal)


def quality(server: Server, journal: Journal, part: int) -> None:
    others = tuple(category for category in CATEGORIES if category != "copy")
    run_quality(server, QualityPlan(TRIALS // part // 2, 0, skip=others), journal, concurrency=4)


def repeat(server: Server, journal: Journal, part: int) -> None:
    run_repeat(server, RepeatPlan((80,) * (TRIALS // part), (20,), index_topk=_TOPK, answer_tokens=8), journal)


def parity(server: Server, journal: Journal, part: int) -> None:
    run_parity(server, ParityPlan((40,) * (TRIALS // part // 2), 8), journal)


KINDS: dict[str, tuple[Callable[[Server, Journal, int], None], tuple[tuple[str, Behaviour], ...]]] = {
    "degen": (
        degen,
        (
            ("LOOP_EXACT", Behaviour(script=m.loop)),
            ("GARBAGE", Behaviour(script=m.broken_bytes)),
            ("RUNAWAY", Behaviour(script=m.run_on)),
            ("EMPTY", Behaviour(script=m.all_reasoning)),
        ),
    ),
    "needle": (
        needle,
        (
            ("DISTRACTOR", Behaviour(script=m.other_code)),
            ("NEAR", Behaviour(script=m.last_digit)),
            ("WRONG", Behaviour(script=m.invented_code)),
            ("ABSTAIN", Behaviour(script=m.no_code)),
        ),
    ),
    "quality": (quality, (("FAIL", Behaviour(script=damaged)),)),
    "repeat": (repeat, (("CHANGED", Behaviour(script=m.other_way, scores=m.unstable_past_index)),)),
    "parity": (parity, (("NONFINITE", behaviour_of("nan-logprobs")), ("NONFINITE", Behaviour(payload=no_number)))),
}
"""How each probe records so many trials, and the faults of which its classes speak."""


def recorded(probe: str, behaviour: Behaviour, part: int, file: Path) -> Iterator[str]:
    """The lines of a run against a server in which every answer has the fault."""
    with FaultyServer(seed=part, sizes=Sizes(index_topk=_TOPK)) as server, Journal(file) as journal:
        server.behaviour = server.engine.behaviour = behaviour
        KINDS[probe][0](identify(Endpoint(server.base_url), None), journal, part)
    for line in file.read_text().splitlines():
        if line.startswith('{"kind": "trial"'):
            yield line


@pytest.mark.slow
@pytest.mark.parametrize("probe", KINDS)
def test_no_healthy_trial_of_two_hundred_is_called_faulty(probe: str, tmp_path: Path) -> None:
    found = [classify(line) for line in recorded(probe, Behaviour(), 1, tmp_path / "t.jsonl")]
    alarms = [judged for judged in found if judged.verdict != "PASS"]
    assert len(found) >= TRIALS
    assert (alarms, clopper_pearson_upper(len(alarms), len(found)) <= _BOUND) == ([], True)


@pytest.mark.slow
@pytest.mark.parametrize("probe", KINDS)
def test_no_faulty_trial_of_two_hundred_is_missed(probe: str, tmp_path: Path) -> None:
    faults = KINDS[probe][1]
    missed: list[str] = []
    count = 0
    for number, (wanted, behaviour) in enumerate(faults):
        for line in recorded(probe, behaviour, len(faults), tmp_path / f"{number}.jsonl"):
            judged = classify(line)
            count += 1
            if judged.outcome != wanted or judged.verdict != "FAIL":
                missed.append(f"{wanted}: {judged} in {line[-300:]}")
    assert count >= TRIALS
    assert (missed[:5], clopper_pearson_upper(len(missed), count) <= _BOUND) == ([], True)
