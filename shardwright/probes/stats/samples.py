"""Two samples of measured values: is one larger, by what ratio, or are they equal within a margin?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import Any

from shardwright.probes.stats.checks import check_confidence

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval."""

    estimate: float
    low: float
    high: float


def mann_whitney_greater(a: Sequence[float], b: Sequence[float]) -> float:
    """P value of "values of A tend to be larger than those of B"; 1 where a sample is empty.

    Source: Mann and Whitney, Annals of Mathematical Statistics 18 (1947) 50; exact for small samples without ties,
    else the normal approximation with correction for ties and continuity. 19 22 16 29 24 against 20 11 17 12 gives
    7/126 = 0.0556.
    """
    if not (a and b):
        return 1.0
    from scipy.stats import mannwhitneyu

    if len(set(a) | set(b)) == 1:
        return 1.0
    return float(mannwhitneyu(a, b, alternative="greater").pvalue)


def bootstrap_median_ratio(
    a: Sequence[float],
    b: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 1,
) -> Interval:
    """Median of A over median of B, with the percentile interval of independent resamples.

    The same numbers and seed give the same interval. Source: Efron and Tibshirani, An Introduction to the Bootstrap
    (1993), chapter 13. Values must be above 0. Raises ValueError for an empty sample.
    """
    _check_samples(a, b, confidence)
    import numpy as np

    chance = np.random.default_rng(seed)
    top = np.median(_resample(chance, np.asarray(a, dtype=float), resamples), axis=1)
    bottom = np.median(_resample(chance, np.asarray(b, dtype=float), resamples), axis=1)
    return _percentiles(median(a) / median(b), top / bottom, confidence)


def bootstrap_paired_ratio(
    a: Sequence[float],
    b: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 1,
) -> Interval:
    """Median of the ratios A[i] / B[i], with the percentile interval of resampled pairs.

    Source and errors as `bootstrap_median_ratio`; the samples must have one length.
    """
    _check_samples(a, b, confidence)
    if len(a) != len(b):
        raise ValueError(f"pairs need samples of one length, not {len(a)} and {len(b)}")
    import numpy as np

    ratios = np.asarray(a, dtype=float) / np.asarray(b, dtype=float)
    drawn = np.median(_resample(np.random.default_rng(seed), ratios, resamples), axis=1)
    return _percentiles(float(np.median(ratios)), drawn, confidence)


def tost(a: Sequence[float], b: Sequence[float], low: float, high: float) -> float:
    """P value of "mean A minus mean B lies between `low` and `high`": the larger of two one-sided Welch tests.

    Source: Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15 (1987) 657. Raises ValueError for samples
    of fewer than 2 values.
    """
    if min(len(a), len(b)) < 2:
        raise ValueError("a test of means needs two values in each sample")
    sd_a, sd_b = math.sqrt(variance(a)), math.sqrt(variance(b))
    return tost_summary(fmean(a), sd_a, len(a), fmean(b), sd_b, len(b), low, high)


def tost_summary(
    mean_a: float, sd_a: float, n_a: int, mean_b: float, sd_b: float, n_b: int, low: float, high: float
) -> float:
    """`tost` from means, standard deviations and sizes.

    Lakens, Social Psychological and Personality Science 8 (2017) 355, gives means 5.25 and 5.22, deviations 0.95 and
    0.83, sizes 95 and 89, margin 0.43 deviations: p = .004.
    """
    part_a, part_b = sd_a * sd_a / n_a, sd_b * sd_b / n_b
    error = math.sqrt(part_a + part_b)
    freedom = (part_a + part_b) ** 2 / (part_a**2 / (n_a - 1) + part_b**2 / (n_b - 1)) if error else 1.0
    return _two_one_sided(mean_a - mean_b, error, freedom, low, high)


def tost_paired(differences: Sequence[float], low: float, high: float) -> float:
    """P value of "the mean difference of pairs lies between `low` and `high`". Source and errors as `tost`."""
    if len(differences) < 2:
        raise ValueError("a test of means needs two values in each sample")
    error = math.sqrt(variance(differences) / len(differences))
    return _two_one_sided(fmean(differences), error, len(differences) - 1, low, high)


def _two_one_sided(gap: float, error: float, freedom: float, low: float, high: float) -> float:
    if low >= high:
        raise ValueError(f"a margin from {low} to {high} holds nothing")
    if error == 0:
        return 0.0 if low < gap < high else 1.0
    from scipy.stats import t

    return float(max(t.sf((gap - low) / error, freedom), t.cdf((gap - high) / error, freedom)))


def _check_samples(a: Sequence[float], b: Sequence[float], confidence: float) -> None:
    check_confidence(confidence)
    if not (a and b):
        raise ValueError("a ratio needs values in both samples")
    if min(*a, *b) <= 0:
        raise ValueError("a ratio needs values above 0")


def _resample(chance: Any, values: Any, resamples: int) -> Any:
    return values[chance.integers(0, len(values), size=(resamples, len(values)))]


def _percentiles(estimate: float, drawn: Any, confidence: float) -> Interval:
    import numpy as np

    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(estimate), float(low), float(high))
