"""How far two scores lie apart, against values that are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwright.probes.divergence import (
    HARD_GAP_NATS,
    Divergence,
    by_prompt,
    first_divergence,
    kl_lower_bound,
    pool,
    positions,
    quantile,
)
from shardwright.probes.scores import Score


def logs(*chances: float, start: int = 0) -> dict[int, float]:
    return {start + token: math.log(chance) for token, chance in enumerate(chances)}


def score(prompt: list[dict[int, float]], ids: tuple[int, ...] = (), top: tuple[dict[int, float], ...] = ()) -> Score:
    actual = tuple(max(entry.values()) for entry in prompt)
    return Score(actual, tuple(prompt), ids, tuple(t.get(i, -9.0) for i, t in zip(ids, top, strict=True)), top)


def test_equal_lists_are_no_distance_apart() -> None:
    assert kl_lower_bound(logs(0.5, 0.3), logs(0.5, 0.3)) == 0


def test_whole_distributions_give_the_textbook_value() -> None:
    # KL((0.5, 0.5) || (0.9, 0.1)) = 0.5 ln(0.5/0.9) + 0.5 ln(0.5/0.1), Cover and Thomas, section 2.3.
    expected = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5)
    assert kl_lower_bound(logs(0.5, 0.5), logs(0.9, 0.1)) == pytest.approx(expected)


def test_lists_without_a_common_token_are_far_apart_not_equal() -> None:
    assert kl_lower_bound(logs(0.6, 0.35), logs(0.6, 0.35, start=10)) > 1


def test_the_rest_bucket_counts() -> None:
    p, q = logs(0.5), logs(0.9)
    expected = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert kl_lower_bound(p, q) == pytest.approx(expected)


chances = st.lists(st.floats(0.001, 1), min_size=6, max_size=6).map(lambda v: [x / sum(v) for x in v])


@given(p=chances, q=chances, k=st.integers(1, 6))
@settings(max_examples=300)
def test_it_never_exceeds_the_divergence_of_the_whole_distributions(p: list[float], q: list[float], k: int) -> None:
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    def top(values: list[float]) -> dict[int, float]:
        best = sorted(range(6), key=lambda token: -values[token])[:k]
        return {token: math.log(values[token]) for token in best}

    assert kl_lower_bound(top(p), top(q)) <= whole + 1e-9


@given(p=chances, q=chances)
def test_with_every_token_listed_it_is_the_divergence_itself(p: list[float], q: list[float]) -> None:
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    listed = [{token: math.log(value) for token, value in enumerate(values)} for values in (p, q)]
    assert kl_lower_bound(*listed) == pytest.approx(whole, abs=1e-9)


@given(p=chances)
def test_rounding_to_five_digits_makes_no_distance_worth_naming(p: list[float]) -> None:
    exact = {token: math.log(value) for token, value in enumerate(p)}
    rounded = {token: round(value, 5) for token, value in exact.items()}
    assert kl_lower_bound(exact, rounded) < 1e-4


def test_positions_are_pooled_with_their_worst_place() -> None:
    same, other = logs(0.8, 0.1), logs(0.1, 0.8)
    rows = positions("p3", score([same] * 9 + [other]), score([same] * 10))
    distance = pool(rows)
    assert distance is not None
    assert (distance.positions, distance.same_top, distance.worst) == (10, 0.9, ("p3", 10))
    assert distance.max_kl == pytest.approx(kl_lower_bound(other, same))
    assert distance.mean_kl == pytest.approx(distance.max_kl / 10)
    assert list(by_prompt([*rows, *positions("p4", score([same]), score([same]))])) == ["p3", "p4"]
    assert pool([]) is None


def test_a_near_tie_is_not_a_hard_divergence_and_a_preference_is() -> None:
    tie = {1: math.log(0.4), 2: math.log(0.39)}
    turned = {1: math.log(0.39), 2: math.log(0.4)}
    near = first_divergence(
        "p", score([], (7, 1), (logs(0.9, start=7), tie)), score([], (7, 2), (logs(0.9, start=7), turned))
    )
    assert near is not None
    assert (near.index, near.hard) == (1, False)
    sure = {1: math.log(0.9), 2: math.log(0.05)}
    hard = first_divergence("p", score([], (1,), (sure,)), score([], (2,), (turned,)))
    assert hard is not None
    assert hard.hard
    assert hard.gap == pytest.approx(math.log(18))


def test_a_token_outside_the_other_list_is_at_least_as_far_as_its_last() -> None:
    found = first_divergence(
        "p", score([], (1,), (logs(0.9, 0.05, start=1),)), score([], (99,), (logs(0.9, start=99),))
    )
    assert found is not None
    assert found.gap >= math.log(18) - 1e-9


def test_equal_answers_do_not_part_and_a_shorter_one_does() -> None:
    a = score([], (1, 2), (logs(0.9, start=1), logs(0.9, start=2)))
    b = score([], (1,), (logs(0.9, start=1),))
    assert first_divergence("p", a, a) is None
    parted = first_divergence("p", a, b)
    assert parted is not None
    assert (parted.index, parted.hard) == (1, True)


@pytest.mark.parametrize("value, broken", [(-1.0, False), (0.0, False), (0.0005, False), (0.1, True)])
def test_a_logprob_above_zero_is_none(value: float, broken: bool) -> None:
    assert bool(Score((value,), ({},), (), (), ()).broken()) is broken
    assert bool(Score((), (), (1,), (value,), ({},)).broken()) is broken


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_logprob_that_is_not_finite_is_none(value: float) -> None:
    assert "token 0 of the prompt" in Score((value,), ({},), (), (), ()).broken()


def test_the_limit_between_near_and_hard() -> None:
    assert not Divergence("p", 0, HARD_GAP_NATS).hard
    assert Divergence("p", 0, HARD_GAP_NATS + 1e-6).hard


@given(values=st.lists(st.floats(-9, 9), min_size=1, max_size=50), share=st.floats(0.01, 1))
def test_a_quantile_has_its_share_at_or_below(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = quantile(ordered, share)
    assume(found in ordered)
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
