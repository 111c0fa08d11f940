"""Exact statistics of trials that pass or fail. Every number in a verdict is computed here from stored trials.

Rates are fractions from 0 to 1, never percent. scipy supplies the distributions and is imported by the call that
needs it, since importing it costs more than the rest of a command's start.
"""

from __future__ import annotations


def clopper_pearson_upper(failures: int, n: int, confidence: float = 0.95) -> float:
    """One-sided upper bound of the failure rate: the rate at which `failures` or fewer have chance 1 - confidence.

    Source: Clopper and Pearson, Biometrika 26 (1934), as a quantile of the beta distribution. 0 of 200 gives 1.49 %.
    Without any trial nothing is known and the bound is 1. Raises ValueError for counts that cannot be.
    """
    _check_counts(failures, n)
    _check_confidence(confidence)
    return _upper(failures, n, confidence)


def clopper_pearson(failures: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided interval of the failure rate, with half of 1 - confidence on each side. 0 of 200 gives 0 to 1.83 %.

    Source: as `clopper_pearson_upper`. Raises ValueError for counts that cannot be.
    """
    _check_counts(failures, n)
    _check_confidence(confidence)
    one_side = (1 + confidence) / 2
    return 1 - _upper(n - failures, n, one_side), _upper(failures, n, one_side)


def fisher_one_sided(failures_a: int, n_a: int, failures_b: int, n_b: int) -> float:
    """P value of "A fails more often than B": chance of A's count or more, given both totals, if the rates were equal.

    Source: Fisher, Statistical Methods for Research Workers (1934), section 21.02; the tail of the hypergeometric
    distribution. 21 of 100 against 0 of 120 gives 1.80e-08. Raises ValueError for counts that cannot be.
    """
    _check_counts(failures_a, n_a)
    _check_counts(failures_b, n_b)
    if failures_a == 0:
        return 1.0
    from scipy.stats import hypergeom

    return float(hypergeom.sf(failures_a - 1, n_a + n_b, failures_a + failures_b, n_a))


def mcnemar(b: int, c: int) -> float:
    """Two-sided exact P value for paired trials: `b` pairs failed only in A, `c` only in B; equal pairs say nothing.

    Source: McNemar, Psychometrika 12 (1947), with the exact binomial instead of the chi-square approximation.
    5 against 0 gives 0.0625 (one-sided 0.031). Raises ValueError for negative counts.
    """
    if b < 0 or c < 0:
        raise ValueError(f"counts of pairs cannot be negative: {b}, {c}")
    if b == c:
        return 1.0
    from scipy.stats import binom

    return min(1.0, 2 * float(binom.cdf(min(b, c), b + c, 0.5)))


def _upper(failures: int, n: int, confidence: float) -> float:
    if failures == n:
        return 1.0
    from scipy.stats import beta

    return float(beta.ppf(confidence, failures + 1, n - failures))


def _check_counts(failures: int, n: int) -> None:
    if not 0 <= failures <= n:
        raise ValueError(f"{failures} failures of {n} trials cannot be")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not {confidence}")
