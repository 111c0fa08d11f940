from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.probes.stats import clopper_pearson, clopper_pearson_upper, fisher_one_sided, mcnemar


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
