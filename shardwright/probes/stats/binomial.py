"""What a count of failures says about the rate, and how many trials a statement needs."""

from __future__ import annotations

import math

from shardwright.probes.stats.checks import check_confidence, check_counts, check_rate

_MOST_TRIALS = 1_000_000


def clopper_pearson_upper(failures: int, n: int, confidence: float = 0.95) -> float:
    """One-sided upper bound of the failure rate: the rate at which `failures` or fewer have chance 1 - confidence.

    Source: Clopper and Pearson, Biometrika 26 (1934), as a quantile of the beta distribution. 0 of 200 gives 1.49 %.
    Without any trial nothing is known and the bound is 1. Raises ValueError for counts that cannot be.
    """
    check_counts(failures, n)
    check_confidence(confidence)
    return _upper(failures, n, confidence)


def clopper_pearson(failures: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided interval of the failure rate, with half of 1 - confidence on each side. 0 of 200 gives 0 to 1.83 %.

    Source: as `clopper_pearson_upper`. Raises ValueError for counts that cannot be.
    """
    check_counts(failures, n)
    check_confidence(confidence)
    one_side = (1 + confidence) / 2
    return 1 - _upper(n - failures, n, one_side), _upper(failures, n, one_side)


def newcombe_difference(
    failures_a: int, n_a: int, failures_b: int, n_b: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Two-sided interval of rate A minus rate B, from the two Wilson intervals.

    Source: Newcombe, Statistics in Medicine 17 (1998) 873, method 10: 56/70 against 48/80 gives 0.0524 to 0.3339.
    Without any trial in an arm nothing is known: -1 to 1. Raises ValueError for counts that cannot be.
    """
    check_counts(failures_a, n_a)
    check_counts(failures_b, n_b)
    check_confidence(confidence)
    if not (n_a and n_b):
        return -1.0, 1.0
    rate_a, rate_b = failures_a / n_a, failures_b / n_b
    low_a, high_a = _wilson(failures_a, n_a, confidence)
    low_b, high_b = _wilson(failures_b, n_b, confidence)
    gap = rate_a - rate_b
    return gap - math.hypot(rate_a - low_a, high_b - rate_b), gap + math.hypot(high_a - rate_a, rate_b - low_b)


def trials_for_upper(bound: float, failures: int = 0, confidence: float = 0.95) -> int:
    """Fewest trials with which `failures` bring the one-sided upper bound down to `bound`.

    0, 1 and 2 failures need 149, 236 and 313 trials for 2 %. Raises ValueError for a bound of 0 or 1.
    """
    check_confidence(confidence)
    if failures < 0 or not 0 < bound < 1:
        raise ValueError(f"no number of trials bounds the rate by {bound} with {failures} failures")
    low, high = failures, failures + 1
    while _upper(failures, high, confidence) > bound:
        if high > _MOST_TRIALS:
            raise ValueError(f"a bound of {bound} needs more than {_MOST_TRIALS} trials")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _upper(failures, middle, confidence) <= bound else (middle, high)
    return high


def trials_to_see(rate: float, probability: float = 0.95) -> int:
    """Fewest trials that show at least one failure with this probability, where failures have this rate.

    A rate of 20 % needs 14, one of 1 % needs 299. Raises ValueError for a rate of 0.
    """
    check_rate(rate)
    check_confidence(probability)
    if rate == 0:
        raise ValueError("a fault that never shows cannot be seen")
    if rate == 1:
        return 1
    return math.ceil(math.log1p(-probability) / math.log1p(-rate) - 1e-12)


def _upper(failures: int, n: int, confidence: float) -> float:
    if failures == n:
        return 1.0
    from scipy.stats import beta

    return float(beta.ppf(confidence, failures + 1, n - failures))


def _wilson(failures: int, n: int, confidence: float) -> tuple[float, float]:
    from statistics import NormalDist

    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = failures / n
    centre = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
