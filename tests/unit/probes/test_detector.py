from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.probes.degen.detector import Loop, LoopDetector
from shardwright.probes.units import UnitSplitter, split_units


def by_definition(tokens: Sequence[object], max_period: int, min_covered: int, min_repeats: int) -> Loop | None:
    """The smallest period whose repetition covers the needed tail, at the first place where there is one."""
    for end in range(1, len(tokens) + 1):
        for period in range(1, max_period + 1):
            run = 0
            while end - 1 - run - period >= 0 and tokens[end - 1 - run] == tokens[end - 1 - run - period]:
                run += 1
            if run and run + period >= max(min_covered, min_repeats * period):
                return Loop(period, run + period, end)
    return None


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(1, 9),
    st.integers(2, 14),
    st.integers(2, 4),
)
def test_equal_to_the_definition(tokens: list[int], max_period: int, min_covered: int, min_repeats: int) -> None:
    found = LoopDetector(max_period, min_covered, min_repeats).push_all(tokens)
    assert found == by_definition(tokens, max_period, min_covered, min_repeats)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.lists(st.integers(0, 5), max_size=20))
def test_equal_to_the_definition_on_real_loops(segment: list[int], before: list[int]) -> None:
    tokens = before + segment * 12
    assert LoopDetector(8, 12, 3).push_all(tokens) == by_definition(tokens, 8, 12, 3)


@pytest.mark.parametrize("seed", range(3))
def test_no_exact_loop_of_1_to_512_tokens_is_missed(seed: int) -> None:
    chance = random.Random(seed)
    for period in range(1, 513):
        segment = [chance.randrange(50_000) for _ in range(period)]
        need = max(200, 3 * period)
        tokens = [chance.randrange(50_000) for _ in range(chance.randrange(100))]
        begin = len(tokens)
        tokens += (segment * (need // period + 1))[:need]
        found = LoopDetector().push_all(tokens)
        assert found is not None, period
        assert found.at_token <= begin + need
        assert period % found.period_tokens == 0 or found.period_tokens == period


def test_a_loop_that_is_too_short_or_too_long_is_none() -> None:
    assert LoopDetector().push_all([1, 2, 3] * 66) is None
    assert LoopDetector().push_all([1, 2, 3] * 66 + [1, 2]) == Loop(3, 200, 200)
    assert LoopDetector().push_all(list(range(513)) * 4) is None
    assert LoopDetector().push_all(list(range(512)) * 3) == Loop(512, 1536, 1536)


def test_a_repetition_that_was_broken_off_does_not_count_later() -> None:
    assert LoopDetector().push_all([1] * 199 + [2] + [1] * 199) is None


def test_memory_does_not_grow_with_the_text() -> None:
    detector = LoopDetector(max_period=16, min_covered=40)
    for token in range(5000):
        detector.push(token)
    assert len(detector._places) <= 16
    assert detector.tokens == 5000


def test_cost_per_token_does_not_grow_with_the_text() -> None:
    chance = random.Random(1)
    tokens = [chance.randrange(2000) for _ in range(120_000)]

    def seconds(part: Sequence[int]) -> float:
        began = time.process_time()
        LoopDetector().push_all(part)
        return time.process_time() - began

    short = min(seconds(tokens[:20_000]) for _ in range(3))
    long = min(seconds(tokens) for _ in range(3))
    assert long / short < 6 * 2


def test_natural_documents_are_no_loops() -> None:
    library = Path(os.__file__).parent
    # Sources with tables of numbers, long docstrings, generated code and licence texts.
    files = [*sorted(library.glob("*.py")), *sorted(library.glob("[a-su-z]*/*.py")), *sorted(library.glob("*/*.txt"))]
    files = [file for file in files if "site-packages" not in file.parts and file.stat().st_size > 1500][::2][:200]
    assert len(files) >= 100
    flagged = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="ignore")[:30_000]
        if LoopDetector().push_all(split_units(text)) is not None:
            flagged.append(file.name)
    assert flagged == []


def test_tables_and_counting_are_no_loops() -> None:
    table = "id,value\n" + "".join(f"{i},0\n" for i in range(1, 300))
    times = "".join(f"{a} x {b} = {a * b}\n" for a in range(1, 13) for b in range(1, 13))
    for text in (table, times, "1 2 3 4 5 6 7 8 9 10"):
        assert LoopDetector().push_all(split_units(text)) is None


@pytest.mark.parametrize("text", ["lock ", "好的", "!", "ab", "la la\n", "I'll use \\boxed{460}. "])
def test_loops_show_in_plain_text_with_and_without_blanks(text: str) -> None:
    units = split_units("The answer is 460. " + text * 4000)
    assert LoopDetector().push_all(units) is not None


@given(
    st.text(st.sampled_from("a \t\u3000中!\n\u2028") | st.characters(), max_size=80),
    st.lists(st.integers(1, 80), max_size=8),
)
def test_units_do_not_depend_on_how_the_text_arrives(text: str, cuts: list[int]) -> None:
    splitter = UnitSplitter()
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    units = []
    for start, end in pairwise(places):
        units += splitter.feed(text[start:end])
    assert units + splitter.finish() == split_units(text)
