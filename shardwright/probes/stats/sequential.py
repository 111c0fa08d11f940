"""Plans that may end early without spoiling what their numbers mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shardwright.probes.stats.binomial import trials_for_upper
from shardwright.probes.stats.checks import check_counts, check_rate

Decision = Literal["PASS", "FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True)
class CurtailedPlan:
    """FAIL at the `fail_at`-th failure, PASS with none in `trials`, INCONCLUSIVE in between.

    Ending at the failure that decides changes no decision, so it costs no error probability, unlike looking again and
    again at a P value. `margin` is the rate under which further trials must bring the upper bound.
    Source: curtailed inspection, Girshick, Mosteller and Savage, Annals of Mathematical Statistics 17 (1946) 13.
    """

    trials: int = 200
    fail_at: int = 4
    margin: float = 0.02

    def decide(self, failures: int, done: int) -> Decision | None:
        """The decision after `done` trials, None while it is open."""
        check_counts(failures, done)
        if failures >= self.fail_at:
            return "FAIL"
        if done < self.trials:
            return None
        return "INCONCLUSIVE" if failures else "PASS"

    def more_trials(self, failures: int, done: int) -> int:
        """How many trials without a further failure would bring the upper bound under `margin`.

        2 % with 1, 2 and 3 failures needs 236, 313 and 386 trials in all.
        """
        check_counts(failures, done)
        return max(0, trials_for_upper(self.margin, failures) - done)

    def chance_of_fail(self, rate: float) -> float:
        """Probability of FAIL where failures have this rate: 0.57 at 2 %, 0.99 at 5 % for 4 in 200."""
        check_rate(rate)
        from scipy.stats import binom

        return float(binom.sf(self.fail_at - 1, self.trials, rate))

    def expected_trials(self, rate: float) -> float:
        """Mean number of trials until the decision: 80 at 5 %, 20 at 20 % for 4 in 200."""
        check_rate(rate)
        from scipy.stats import binom

        return float(sum(binom.cdf(self.fail_at - 1, done, rate) for done in range(self.trials)))


@dataclass(frozen=True)
class Sprt:
    """Wald's sequential test between a tolerable rate `good` and an intolerable one `bad`.

    `alpha` is the chance of failing a good server, `beta` that of passing a bad one. Between the two rates the answer
    is a coin toss. The count at the end must not be given a fixed-size bound.
    Source: Wald, Annals of Mathematical Statistics 16 (1945) 117.
    """

    good: float = 0.005
    bad: float = 0.05
    alpha: float = 0.01
    beta: float = 0.05

    def __post_init__(self) -> None:
        if not (0 < self.good < self.bad < 1 and 0 < self.alpha < 1 and 0 < self.beta < 1):
            raise ValueError("the rates and error probabilities must lie between 0 and 1, good below bad")

    @property
    def failure_step(self) -> float:
        """Log likelihood ratio of one failure."""
        return math.log(self.bad / self.good)

    @property
    def success_step(self) -> float:
        """Log likelihood ratio of one healthy trial; negative."""
        return math.log((1 - self.bad) / (1 - self.good))

    @property
    def pass_at(self) -> float:
        """The sum at which it passes."""
        return math.log(self.beta / (1 - self.alpha))

    @property
    def fail_at(self) -> float:
        """The sum at which it fails."""
        return math.log((1 - self.beta) / self.alpha)

    def score(self, failures: int, done: int) -> float:
        """The sum after `done` trials. Raises ValueError for counts that cannot be."""
        check_counts(failures, done)
        return failures * self.failure_step + (done - failures) * self.success_step

    def decide(self, failures: int, done: int) -> Decision | None:
        """The decision after `done` trials, None while it is open."""
        score = self.score(failures, done)
        if score >= self.fail_at:
            return "FAIL"
        return "PASS" if score <= self.pass_at else None

    @property
    def trials_to_pass(self) -> int:
        """Trials without any failure after which it passes: 65 by default."""
        return math.ceil(self.pass_at / self.success_step)
