"""How often parity is wrong about a pair: 200 pairs of one model and 200 of two, from recordings over sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.probes.faulty import misbehave as m
from shardwright.probes.faulty.behaviour import Behaviour, Situation, Sizes
from shardwright.probes.faulty.generated import Scores
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal, Record
from shardwright.probes.parity.plan import ROUNDS, ParityPlan
from shardwright.probes.parity.report import compare
from shardwright.probes.parity.run import run_parity
from shardwright.probes.server import identify
from shardwright.probes.stats import clopper_pearson_upper
from shardwright.probes.stored import plan_record, read_records
from shardwright.probes.wire import Endpoint

pytestmark = pytest.mark.slow

PAIRS = 200
_TOKENS = 256
"""Of one prompt; a quick recording has four of these, and so a steadier measure of its own noise."""
_TOPK = 32
_BOUND = 0.0149
"""What 0 of 200 gives; one mistake would be 2.35 %."""


def rounding(_: Situation, __: int) -> Scores:
    """So much noise that the limits must follow the first arm's own."""
    return Scores(jitter=0.02)


def one_place_in_sixteen(_: Situation, position: int) -> Scores:
    return Scores(skew=int(position % 16 == 7))


FAULTS = {
    "another model": Behaviour(scores=m.another_model),
    "past index_topk": Behaviour(scores=m.unstable_past_index),
    "one place in sixteen": Behaviour(scores=one_place_in_sixteen),
    "the answer alone": Behaviour(script=m.word_salad),
}


def recordings(behaviour: Behaviour, seed: int, prompts: int, file: Path) -> Iterator[list[Record]]:
    """Each prompt of one recording as a recording of its own."""
    with FaultyServer(seed=seed, sizes=Sizes(index_topk=_TOPK)) as server, Journal(file) as journal:
        server.behaviour = server.engine.behaviour = behaviour
        plan = ParityPlan((_TOKENS,) * prompts, 8, top=5)
        run_parity(identify(Endpoint(server.base_url), None), plan, journal)
    records = read_records(file)
    header = plan_record(records)
    assert header is not None
    trials = {record["trial"]: record for record in records if record["kind"] == "trial"}
    for number in range(prompts):
        names = [f"p{number}/{how}" for how in ROUNDS]
        yield [{**header, "planned": names}, *(trials[name] for name in names)]


def verdicts(first: Behaviour, second: Behaviour, prompts: int, folder: Path) -> list[str]:
    a = recordings(first, 1, prompts, folder / "a.jsonl")
    b = recordings(second, 2, prompts, folder / "b.jsonl")
    return [compare(mine, other).verdict for mine, other in zip(a, b, strict=True)]


def test_two_recordings_of_one_noisy_model_are_never_called_two(tmp_path: Path) -> None:
    found = verdicts(Behaviour(scores=rounding), Behaviour(scores=rounding), PAIRS, tmp_path)
    alarms = found.count("FAIL")
    assert (len(found), alarms, clopper_pearson_upper(alarms, PAIRS) <= _BOUND) == (PAIRS, 0, True)


def test_two_models_are_never_called_one(tmp_path: Path) -> None:
    missed: dict[str, int] = {}
    for name, fault in FAULTS.items():
        folder = tmp_path / name
        folder.mkdir()
        missed[name] = PAIRS // len(FAULTS) - verdicts(Behaviour(), fault, PAIRS // len(FAULTS), folder).count("FAIL")
    assert missed == dict.fromkeys(FAULTS, 0)
    assert clopper_pearson_upper(sum(missed.values()), PAIRS) <= _BOUND
