from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.probes.stats import (
    CurtailedPlan,
    Sprt,
    bootstrap_median_ratio,
    bootstrap_paired_ratio,
    clopper_pearson,
    clopper_pearson_upper,
    fisher_failures_needed,
    fisher_one_sided,
    fisher_power,
    fisher_two_sided,
    holm,
    mann_whitney_greater,
    mcnemar,
    mcnemar_one_sided,
    newcombe_difference,
    tost,
    tost_paired,
    tost_summary,
    trials_for_upper,
    trials_to_see,
)


def test_the_published_p_value_that_a_field_report_got_wrong() -> None:
    assert fisher_one_sided(21, 100, 0, 120) == pytest.approx(1.80e-08, rel=0.003)


def test_fisher_is_one_sided_so_that_a_better_arm_is_no_evidence_of_harm() -> None:
    assert fisher_one_sided(0, 120, 21, 100) == pytest.approx(1.0)
    assert fisher_one_sided(0, 100, 0, 100) == pytest.approx(1.0)


def test_no_failure_is_not_a_rate_of_zero() -> None:
    assert clopper_pearson_upper(0, 200) == pytest.approx(0.0149, abs=5e-5)
    assert clopper_pearson_upper(0, 40) == pytest.approx(0.0722, abs=5e-5)
    assert clopper_pearson_upper(0, 12) == pytest.approx(0.2209, abs=5e-5)


def test_one_sided_and_two_sided_bounds_are_not_mixed_up() -> None:
    lower, upper = clopper_pearson(0, 200)
    assert lower == 0.0
    assert upper == pytest.approx(0.0183, abs=5e-5)
    assert clopper_pearson_upper(0, 200) < upper


def test_nothing_tried_is_nothing_known_and_all_failed_is_no_bound() -> None:
    assert clopper_pearson_upper(0, 0) == 1.0
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    assert clopper_pearson_upper(6, 6) == 1.0
    assert clopper_pearson(3, 3)[0] == pytest.approx(0.2924, abs=5e-5)


def test_mcnemar_exact_values_and_balance() -> None:
    assert mcnemar(5, 0) == pytest.approx(2 * 0.5**5)
    assert mcnemar(6, 0) == pytest.approx(2 * 0.5**6)
    assert mcnemar(3, 3) == mcnemar(0, 0) == 1.0
    assert mcnemar(2, 9) == mcnemar(9, 2)


@pytest.mark.parametrize("failures, n", [(-1, 5), (6, 5), (1, 0)])
def test_impossible_counts_are_refused(failures: int, n: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        clopper_pearson_upper(failures, n)
    with pytest.raises(ValueError, match="cannot be"):
        fisher_one_sided(0, 5, failures, n)


def test_a_confidence_in_percent_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        clopper_pearson_upper(0, 5, 95)


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_upper_bound_is_the_rate_at_which_so_few_failures_are_rare(failures: int, more: int) -> None:
    from math import comb

    n = failures + more
    bound = clopper_pearson_upper(failures, n)
    if failures < n:
        chance = sum(comb(n, k) * bound**k * (1 - bound) ** (n - k) for k in range(failures + 1))
        assert chance == pytest.approx(0.05, rel=1e-6)


@given(st.integers(0, 25), st.integers(0, 25), st.integers(0, 25), st.integers(0, 25))
def test_fisher_equals_the_sum_over_the_tables(a: int, more_a: int, b: int, more_b: int) -> None:
    from math import comb

    n_a, n_b, total = a + more_a, b + more_b, a + b
    tail = sum(comb(n_a, k) * comb(n_b, total - k) for k in range(a, min(n_a, total) + 1))
    assert fisher_one_sided(a, n_a, b, n_b) == pytest.approx(tail / comb(n_a + n_b, total), rel=1e-9)


@pytest.mark.parametrize(
    "arms, p",
    [((28, 140, 0, 120), 7.40e-09), ((25, 120, 0, 120), 7.39e-09), ((19, 100, 0, 120), 1.12e-07)],
)
def test_p_values_near_the_published_one_are_of_other_counts(arms: tuple[int, int, int, int], p: float) -> None:
    assert fisher_one_sided(*arms) == pytest.approx(p, rel=0.005)


def test_two_similar_arms_do_not_differ() -> None:
    assert fisher_two_sided(21, 100, 19, 100) == pytest.approx(0.86, abs=0.005)
    # Fisher, The Design of Experiments (1935): the lady tasting tea, 3 of 4 cups of each kind named right.
    assert fisher_one_sided(3, 4, 1, 4) == pytest.approx(0.243, abs=5e-4)
    assert fisher_two_sided(3, 4, 1, 4) == pytest.approx(0.486, abs=5e-4)
    assert fisher_two_sided(0, 9, 0, 4) == 1.0


@pytest.mark.parametrize(
    "rate, probability, n",
    [
        (0.2, 0.95, 14),
        (0.2, 0.99, 21),
        (0.1, 0.95, 29),
        (0.1, 0.99, 44),
        (0.05, 0.95, 59),
        (0.05, 0.99, 90),
        (0.02, 0.95, 149),
        (0.02, 0.99, 228),
        (0.01, 0.95, 299),
        (0.01, 0.99, 459),
        (1.0, 0.95, 1),
        (0.5, 0.75, 2),
    ],
)
def test_how_many_trials_show_a_fault(rate: float, probability: float, n: int) -> None:
    assert trials_to_see(rate, probability) == n
    assert 1 - (1 - rate) ** n >= probability - 1e-9
    assert n == 1 or 1 - (1 - rate) ** (n - 1) < probability


@pytest.mark.parametrize(
    "failures, sizes",
    [(0, (59, 99, 149, 199, 299)), (1, (93, 157, 236, 315, 473)), (2, (124, 208, 313, 418, 628))],
)
def test_how_many_trials_bound_the_rate(failures: int, sizes: tuple[int, ...]) -> None:
    assert tuple(trials_for_upper(bound, failures) for bound in (0.05, 0.03, 0.02, 0.015, 0.01)) == sizes
    assert clopper_pearson_upper(failures, sizes[0]) <= 0.05 < clopper_pearson_upper(failures, sizes[0] - 1)


@pytest.mark.parametrize("bound, failures", [(0.0, 0), (1.0, 0), (0.1, -1), (1e-9, 0)])
def test_a_bound_that_no_number_of_trials_gives_is_refused(bound: float, failures: int) -> None:
    with pytest.raises(ValueError, match="trials"):
        trials_for_upper(bound, failures)


def test_a_fault_that_never_shows_cannot_be_seen() -> None:
    with pytest.raises(ValueError, match="never shows"):
        trials_to_see(0.0)


@pytest.mark.parametrize(
    "rate, n_a, n_b, power",
    [
        (0.2, 40, 40, 0.92),
        (0.1, 80, 80, 0.91),
        (0.05, 150, 150, 0.87),
        (0.05, 200, 200, 0.97),
        (0.02, 200, 200, 0.37),
        (0.02, 400, 400, 0.90),
        (0.05, 40, 40, 0.05),
        (0.05, 40, 200, 0.60),
    ],
)
def test_the_power_of_fisher_against_a_clean_control(rate: float, n_a: int, n_b: int, power: float) -> None:
    assert fisher_power(rate, n_a, 0.0, n_b) == pytest.approx(power, abs=0.006)


def test_the_power_under_equal_rates_stays_below_the_level() -> None:
    assert fisher_power(0.1, 40, 0.1, 40) < 0.05
    assert fisher_power(0.3, 4, 0.0, 4) == pytest.approx(0.3**4)


@pytest.mark.parametrize("n_a, n_b, needed", [(200, 200, (5, 7, 10)), (200, 120, (7, 10, 15)), (100, 120, (4, 6, 9))])
def test_how_many_failures_are_significant(n_a: int, n_b: int, needed: tuple[int, ...]) -> None:
    assert tuple(fisher_failures_needed(n_a, 0, n_b, alpha) for alpha in (0.05, 0.01, 0.001)) == needed
    assert fisher_failures_needed(2, 0, 2) is None


def test_mcnemar_one_sided_needs_five_pairs() -> None:
    assert [round(mcnemar_one_sided(b, 0), 3) for b in (0, 4, 5, 6)] == [1.0, 0.062, 0.031, 0.016]
    assert mcnemar_one_sided(0, 7) == 1.0
    with pytest.raises(ValueError, match="negative"):
        mcnemar_one_sided(-1, 2)


def test_newcombe_as_published() -> None:
    # Newcombe (1998), table II, example (a), method 10.
    assert newcombe_difference(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    low, high = newcombe_difference(0, 10, 0, 20)
    assert (low, high) == pytest.approx((-0.1611, 0.2775), abs=5e-5)
    assert newcombe_difference(0, 0, 1, 3) == (-1.0, 1.0)


def test_holm_textbook_example() -> None:
    # Worked in the encyclopedia article on the Holm-Bonferroni method: H4 and H1 are rejected at 5 %.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_mann_whitney_textbook_example() -> None:
    # The worked example of scipy.stats.mannwhitneyu: U = 17, exact two-sided p = 1/9.
    males, females = [19, 22, 16, 29, 24], [20, 11, 17, 12]
    assert mann_whitney_greater(males, females) == pytest.approx(7 / 126)
    assert mann_whitney_greater(females, males) > 0.9
    assert mann_whitney_greater([5, 5], [5, 5, 5]) == mann_whitney_greater([], [1]) == 1.0


def test_longer_answers_are_seen_at_one_in_a_thousand() -> None:
    import numpy as np

    chance = np.random.default_rng(5)
    seen = same = 0
    for _ in range(200):
        a, b = chance.lognormal(0.82, 0.5, 20), chance.lognormal(0.0, 0.5, 20)
        seen += mann_whitney_greater(list(a), list(b)) < 0.001
        same += mann_whitney_greater(list(b), list(chance.lognormal(0.0, 0.5, 20))) < 0.001
    # A median 2.27 times as long is found in 94 % of runs of 20 per arm.
    assert 0.88 <= seen / 200 <= 0.99
    assert same <= 2


def test_bootstrap_is_repeatable_and_holds_the_ratio() -> None:
    a, b = [84.0 + i for i in range(-20, 21)], [37.0 + 0.3 * i for i in range(-20, 21)]
    first = bootstrap_median_ratio(a, b)
    assert first == bootstrap_median_ratio(a, b)
    assert first != bootstrap_median_ratio(a, b, seed=2)
    assert first.estimate == pytest.approx(84 / 37)
    assert first.low < 84 / 37 < first.high
    assert first.high - first.low < 1
    paired = bootstrap_paired_ratio([value * 1.1 for value in b], b)
    assert (paired.low, paired.high) == pytest.approx((1.1, 1.1))
    for wrong in (([], [1.0]), ([0.0], [1.0])):
        with pytest.raises(ValueError, match="a ratio needs"):
            bootstrap_median_ratio(*wrong)
    with pytest.raises(ValueError, match="one length"):
        bootstrap_paired_ratio([1.0], [1.0, 2.0])


def test_tost_as_published_and_never_by_lack_of_evidence() -> None:
    # Lakens (2017), the replication of Moon and Roeder: t(182) = -2.69, p = .004.
    margin = 0.43 * ((0.95**2 + 0.83**2) / 2) ** 0.5
    assert tost_summary(5.25, 0.95, 95, 5.22, 0.83, 89, -margin, margin) == pytest.approx(0.004, abs=5e-4)
    # Wide samples do not differ, yet are not shown equal.
    assert tost([1, 9, 5, 2], [8, 1, 5, 4], -0.5, 0.5) > 0.05
    assert tost([5.0, 5.0], [5.0, 5.0], -1, 1) == 0.0
    assert tost([5.0, 5.0], [7.0, 7.0], -1, 1) == 1.0
    assert tost_paired([0.01, -0.02, 0.015, 0.0, -0.01], -0.5, 0.5) < 0.001
    for wrong in (lambda: tost([1.0], [1.0, 2.0], -1, 1), lambda: tost_paired([1.0], -1, 1)):
        with pytest.raises(ValueError, match="two values"):
            wrong()
    with pytest.raises(ValueError, match="holds nothing"):
        tost_paired([1.0, 2.0], 1, -1)


@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=8),
    st.lists(st.floats(-5, 5), min_size=3, max_size=8),
)
def test_tost_equals_two_welch_tests(a: list[float], b: list[float]) -> None:
    from statistics import variance

    from hypothesis import assume
    from scipy.stats import ttest_ind

    assume(variance(a) > 1e-6 and variance(b) > 1e-6)
    above = ttest_ind([value + 1 for value in a], b, equal_var=False, alternative="greater").pvalue
    below = ttest_ind([value - 1 for value in a], b, equal_var=False, alternative="less").pvalue
    assert tost(a, b, -1, 1) == pytest.approx(max(above, below), rel=1e-6, abs=1e-9)


@given(st.integers(0, 25), st.integers(0, 25), st.integers(0, 25), st.integers(0, 25))
def test_fisher_equals_scipy(a: int, more_a: int, b: int, more_b: int) -> None:
    from scipy.stats import binomtest, fisher_exact

    table = [[a, more_a], [b, more_b]]
    if a + b and more_a + more_b:
        assert fisher_one_sided(a, a + more_a, b, b + more_b) == pytest.approx(
            fisher_exact(table, alternative="greater")[1], rel=1e-9
        )
    if a + b:
        assert mcnemar(a, b) == pytest.approx(binomtest(a, a + b).pvalue, rel=1e-9)


def test_the_curtailed_plan_decides_at_the_fourth_failure() -> None:
    plan = CurtailedPlan()
    assert plan.decide(3, 10) is None
    assert plan.decide(4, 10) == plan.decide(9, 200) == "FAIL"
    assert [plan.decide(k, 200) for k in range(4)] == ["PASS", "INCONCLUSIVE", "INCONCLUSIVE", "INCONCLUSIVE"]
    assert [plan.more_trials(k, 200) for k in (1, 2, 3)] == [36, 113, 186]
    assert plan.more_trials(0, 200) == 0
    with pytest.raises(ValueError, match="cannot be"):
        plan.decide(5, 4)


@pytest.mark.parametrize(
    "fail_at, chances",
    [(2, (0.26, 0.60, 0.91, 1.0, 1.0)), (3, (0.08, 0.32, 0.77, 0.998, 1.0)), (4, (0.02, 0.14, 0.57, 0.99, 1.0))],
)
def test_the_chance_to_fail_a_curtailed_plan(fail_at: int, chances: tuple[float, ...]) -> None:
    plan = CurtailedPlan(fail_at=fail_at)
    found = [plan.chance_of_fail(rate) for rate in (0.005, 0.01, 0.02, 0.05, 0.2)]
    assert found == pytest.approx(chances, abs=0.006)


@pytest.mark.parametrize("fail_at, means", [(2, (40, 10)), (3, (60, 15)), (4, (80, 20)), (5, (99, 25))])
def test_a_broken_server_ends_a_curtailed_plan_early(fail_at: int, means: tuple[int, int]) -> None:
    plan = CurtailedPlan(fail_at=fail_at)
    assert [round(plan.expected_trials(rate)) for rate in (0.05, 0.2)] == list(means)
    assert plan.expected_trials(0.0) == pytest.approx(200)


def test_the_sequential_test_of_wald() -> None:
    test = Sprt()
    steps = (test.failure_step, test.success_step, test.pass_at, test.fail_at)
    assert steps == pytest.approx((2.303, -0.0463, -2.986, 4.554), abs=6e-4)
    assert (test.trials_to_pass, Sprt(good=0.002, bad=0.02).trials_to_pass) == (65, 165)
    assert (test.decide(0, 64), test.decide(0, 65)) == (None, "PASS")
    # The latest trial at which 2, 3 and 4 failures still fail.
    for failures, last in ((2, 3), (3, 53), (4, 104)):
        assert (test.decide(failures, last), test.decide(failures, last + 1)) == ("FAIL", None)
    with pytest.raises(ValueError, match="good below bad"):
        Sprt(good=0.1, bad=0.05)


def test_the_sequential_test_keeps_its_error_rates() -> None:
    import random

    test, chance = Sprt(), random.Random(3)

    def run(rate: float) -> tuple[str, int]:
        failures = done = 0
        while True:
            done += 1
            failures += chance.random() < rate
            decision = test.decide(failures, done)
            if decision is not None:
                return decision, done

    good = [run(0.005) for _ in range(1500)]
    bad = [run(0.05) for _ in range(1500)]
    assert sum(decision == "FAIL" for decision, _ in good) <= 0.02 * 1500
    assert sum(decision == "PASS" for decision, _ in bad) <= 0.07 * 1500
    assert sum(done for _, done in bad) / 1500 == pytest.approx(72, rel=0.15)
