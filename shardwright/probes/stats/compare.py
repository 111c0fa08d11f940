"""Two arms of trials that pass or fail: is the difference more than luck, and could one be seen at all?"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.probes.stats.checks import check_counts, check_rate


def fisher_one_sided(failures_a: int, n_a: int, failures_b: int, n_b: int) -> float:
    """P value of "A fails more often than B": chance of A's count or more, given both totals, if the rates were equal.

    Source: Fisher, Statistical Methods for Research Workers (1934), section 21.02; the tail of the hypergeometric
    distribution. 21 of 100 against 0 of 120 gives 1.80e-08. Raises ValueError for counts that cannot be.
    """
    check_counts(failures_a, n_a)
    check_counts(failures_b, n_b)
    if failures_a == 0:
        return 1.0
    from scipy.stats import hypergeom

    return float(hypergeom.sf(failures_a - 1, n_a + n_b, failures_a + failures_b, n_a))


def fisher_two_sided(failures_a: int, n_a: int, failures_b: int, n_b: int) -> float:
    """P value of "the rates differ": all tables that are no more likely than the one that was seen.

    Source: as `fisher_one_sided`. 21 of 100 against 19 of 100 gives 0.86. Raises ValueError for counts that cannot be.
    """
    check_counts(failures_a, n_a)
    check_counts(failures_b, n_b)
    from scipy.stats import fisher_exact

    table = [[failures_a, n_a - failures_a], [failures_b, n_b - failures_b]]
    return min(1.0, float(fisher_exact(table, alternative="two-sided")[1]))


def fisher_power(rate_a: float, n_a: int, rate_b: float, n_b: int, alpha: float = 0.05) -> float:
    """Probability that `fisher_one_sided` finds A worse at level `alpha`, where these are the true rates.

    40 trials per arm see 20 % against 0 with 0.92. Source: the sum over all tables, as in Bennett and Hsu,
    Biometrika 47 (1960). Raises ValueError for rates that cannot be.
    """
    check_rate(rate_a)
    check_rate(rate_b)
    from scipy.stats import binom

    power = 0.0
    needed = 0
    for failures_b in range(n_b + 1):
        chance = float(binom.pmf(failures_b, n_b, rate_b))
        if chance < 1e-12:
            continue
        # More failures of B never need fewer of A.
        found = fisher_failures_needed(n_a, failures_b, n_b, alpha, at_least=needed)
        if found is None:
            break
        needed = found
        power += chance * float(binom.sf(needed - 1, n_a, rate_a))
    return power


def fisher_failures_needed(
    n_a: int, failures_b: int, n_b: int, alpha: float = 0.05, *, at_least: int = 0
) -> int | None:
    """Fewest failures of A that differ from B's at level `alpha`; None where even all would not.

    200 trials against a clean control of 200 need 5. The search begins at `at_least`.
    """
    for failures in range(at_least, n_a + 1):
        if fisher_one_sided(failures, n_a, failures_b, n_b) < alpha:
            return failures
    return None


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


def mcnemar_one_sided(b: int, c: int) -> float:
    """P value of "A fails in pairs where B does not" (`b`) more often than the other way round (`c`).

    Source: as `mcnemar`. 5 against 0 gives 0.031, 6 against 0 gives 0.016. Raises ValueError for negative counts.
    """
    if b < 0 or c < 0:
        raise ValueError(f"counts of pairs cannot be negative: {b}, {c}")
    if b == 0:
        return 1.0
    from scipy.stats import binom

    return float(binom.sf(b - 1, b + c, 0.5))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted P values of several tests, in the order given: those under alpha hold together at level alpha.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979) 65. 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02.
    """
    for value in p_values:
        check_rate(value)
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = worst
    return adjusted
