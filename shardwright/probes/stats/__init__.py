"""Exact statistics of trials. Every number in a verdict is computed here from stored trials.

Rates are fractions from 0 to 1, never percent. scipy supplies the distributions and is imported by the call that
needs it, since importing it costs more than the rest of a command's start.
"""

from shardwright.probes.stats.binomial import (
    clopper_pearson,
    clopper_pearson_upper,
    newcombe_difference,
    trials_for_upper,
    trials_to_see,
)
from shardwright.probes.stats.compare import (
    fisher_failures_needed,
    fisher_one_sided,
    fisher_power,
    fisher_two_sided,
    holm,
    mcnemar,
    mcnemar_one_sided,
)
from shardwright.probes.stats.samples import (
    Interval,
    bootstrap_median_ratio,
    bootstrap_paired_ratio,
    mann_whitney_greater,
    tost,
    tost_paired,
    tost_summary,
)
from shardwright.probes.stats.sequential import CurtailedPlan, Sprt

__all__ = [
    "CurtailedPlan",
    "Interval",
    "Sprt",
    "bootstrap_median_ratio",
    "bootstrap_paired_ratio",
    "clopper_pearson",
    "clopper_pearson_upper",
    "fisher_failures_needed",
    "fisher_one_sided",
    "fisher_power",
    "fisher_two_sided",
    "holm",
    "mann_whitney_greater",
    "mcnemar",
    "mcnemar_one_sided",
    "newcombe_difference",
    "tost",
    "tost_paired",
    "tost_summary",
    "trials_for_upper",
    "trials_to_see",
]
