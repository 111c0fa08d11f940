from __future__ import annotations

import pytest

from shardwright.probes.degen.detector import Loop, LoopDetector
from shardwright.probes.degen.outcomes import OutcomeClass, judge
from shardwright.probes.units import split_units


def outcome_of(text: str, finish: str | None = "stop", reasoning: str = "") -> OutcomeClass:
    loop = LoopDetector().push_all(split_units(reasoning + text))
    return judge(text, reasoning, None if loop else finish, loop).outcome


def test_a_constant_token_loop_behind_http_200() -> None:
    assert outcome_of("lock " * 800, "length") == OutcomeClass.LOOP_EXACT
    assert outcome_of("好的" * 500, "length") == OutcomeClass.LOOP_EXACT
    assert outcome_of("!" * 800, "length").degenerate


def test_a_right_answer_that_loops_in_the_reasoning() -> None:
    reasoning = "So it is \\boxed{460}. " + "I'll use \\boxed{460}. " * 200
    assert outcome_of("", "length", reasoning) == OutcomeClass.LOOP_EXACT


def test_legitimate_repetition_is_ok() -> None:
    rows = "id,value\n" + "".join(f"{i},0\n" for i in range(1, 61))
    assert outcome_of(rows) == OutcomeClass.OK
    assert outcome_of("".join(f"{a} x {b} = {a * b}\n" for a in range(1, 11) for b in range(1, 11))) == OutcomeClass.OK
    assert outcome_of("aGVsbG8gd29ybGQsIHRoaXMgaXMgYSB0ZXN0IG9mIGJhc2U2NCB0ZXh0Lg==") == OutcomeClass.OK


def test_an_answer_that_never_ends_is_a_runaway() -> None:
    assert outcome_of(" ".join(f"word{i}" for i in range(500)), "length") == OutcomeClass.RUNAWAY


@pytest.mark.parametrize("text", ["Par\ufffdis.", "a\x00b", "half \ud83d pair", "?" * 60])
def test_broken_characters_are_garbage_even_when_it_ends_well(text: str) -> None:
    assert outcome_of(text) == OutcomeClass.GARBAGE


@pytest.mark.parametrize("text", ["Paris.", "4", "1 2 3 4 5", "天空是蓝色的。", "a\tb\r\nc", "👩‍👩‍👧", "!!!", "🫨"])
def test_plain_answers_are_ok(text: str) -> None:
    assert outcome_of(text) == OutcomeClass.OK


def test_no_answer_is_empty_and_reasoning_alone_is_none() -> None:
    assert outcome_of("") == outcome_of(" \n") == outcome_of("", reasoning="I think so.") == OutcomeClass.EMPTY


def test_a_server_that_stops_a_repetition_itself_does_not_hide_it() -> None:
    assert outcome_of("a b", "repetition") == OutcomeClass.LOOP_EXACT


@pytest.mark.parametrize("finish", [None, "abort", "error", "content_filter"])
def test_an_answer_that_did_not_end_well_is_neither_pass_nor_failure(finish: str | None) -> None:
    outcome = outcome_of("Paris.", finish)
    assert outcome == OutcomeClass.ERROR
    assert not outcome.degenerate


def test_the_ground_is_given() -> None:
    found = judge("a", "", None, Loop(3, 200, 210))
    assert found.detail == "the last 200 tokens repeat with period 3"
    assert "U+FFFD" in judge("\ufffd", "", "stop", None).detail
