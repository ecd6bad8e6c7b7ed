"""Runs that failed to learn, to finish or to reach a goal. They are counted on their own, and not averaged in.

A run that ended before it reached the goal is censored: it is not slow, and it is not missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from lightning_perf.statistics.values import Estimate, Numbers, Probability, finite, scipy_stats

LEAST_DROP = 0.10
"""The smallest distance of a collapsed run's accuracy below the median of all runs."""

MAD_FACTOR = 5 * 1.4826
"""A collapse is also beyond five robust standard deviations (1.4826 MAD is the SD of normal values)."""


LEAST_SHARE = 0.5
"""A loss or score that is worse than the baseline's median by at least this share makes a run diverged."""


class CollapseCounts(Struct, frozen=True):
    """Runs of two arms that collapsed, or that did not finish.

    Attributes:
        baseline: Such runs of the baseline.
        of_baseline: All its runs.
        candidate: Such runs of the candidate.
        of_candidate: All its runs.
    """

    baseline: int
    of_baseline: int
    candidate: int
    of_candidate: int

    @property
    def worse(self) -> bool:
        """Whether they are a larger share of the candidate's runs."""
        return self.candidate * self.of_baseline > self.baseline * self.of_candidate

    @property
    def p(self) -> float | None:
        """Two-sided p-value of equal shares (Fisher's exact test), or None if an arm has no runs."""
        if not self.of_baseline or not self.of_candidate:
            return None
        table = [
            [self.baseline, self.of_baseline - self.baseline],
            [self.candidate, self.of_candidate - self.candidate],
        ]
        return float(scipy_stats().fisher_exact(table).pvalue)

    def __str__(self) -> str:
        return f"{self.candidate} of {self.of_candidate}, in the baseline {self.baseline} of {self.of_baseline}"


def collapse_limit(accuracies: Numbers) -> float | None:
    """Return the accuracy below which a run counts as collapsed, if none was declared.

    It takes the runs of all arms together, so that a collapsed arm cannot set its own measure.
    """
    return baseline_limit(accuracies, least=LEAST_DROP) if len(finite(accuracies)) >= 4 else None


def baseline_limit(values: Numbers, *, higher_is_better: bool = True, least: float | None = None) -> float | None:
    """Return the value beyond which a run is far worse than the baseline: five robust deviations from its median.

    Unlike `collapse_limit` it does not depend on the candidates, so it also finds an arm in which all runs fail.

    Example:
        >>> baseline_limit([2.0, 2.0, 2.0], higher_is_better=False)
        3.0
    """
    numbers = finite(values)
    if len(numbers) < 2:
        return None
    median = float(np.median(numbers))
    deviation = float(np.median(np.abs(numbers - median)))
    reach = max(LEAST_SHARE * abs(median) if least is None else least, MAD_FACTOR * deviation)
    return median - reach if higher_is_better else median + reach


def clopper_pearson(count: int, n: int, confidence: float = 0.95) -> Estimate:
    """Return a share of runs with its exact interval (Clopper & Pearson, 1934)."""
    if not 0 <= count <= n:
        raise ValueError(f"{count} of {n} runs is not a share")
    if n == 0:
        return Estimate(None, None, None, confidence, 0, "Clopper–Pearson", "there are no runs")
    ends = scipy_stats().binomtest(count, n).proportion_ci(confidence, method="exact")
    return Estimate(count / n, float(ends.low), float(ends.high), confidence, n, "Clopper–Pearson")


class ReachTime(Struct, frozen=True):
    """The time at which one run reached the goal.

    Attributes:
        time_s: Training time at which it did, or at which the run ended without it.
    """

    time_s: float
    reached: bool


def kaplan_meier_median(runs: Sequence[ReachTime]) -> float | None:
    """Return the time by which half of the runs have reached the goal (Kaplan & Meier, 1958); None if fewer have."""
    share = 1.0
    for time in sorted({run.time_s for run in runs if run.reached}):
        at_risk = sum(run.time_s >= time for run in runs)
        share *= 1 - sum(run.reached and run.time_s == time for run in runs) / at_risk
        if share <= 0.5 + 1e-12:
            return time
    return None


def first_to_reach(base: Sequence[ReachTime | None], candidate: Sequence[ReachTime | None]) -> Probability:
    """Sign test over blocks: which of a block's two runs reached the goal first.

    A run that reached it beats a run that had not by that time. A block does not count if neither did, or if one run
    reached it after the other had ended.
    """
    method = "sign test over blocks"
    if len(base) != len(candidate):
        return Probability(None, 0, method, reason="the arms have different numbers of runs: they cannot be paired")
    pairs = [(b, c) for b, c in zip(base, candidate, strict=True) if b is not None and c is not None]
    won, lost = sum(_beats(c, b) for b, c in pairs), sum(_beats(b, c) for b, c in pairs)
    n = won + lost
    if not n:
        return Probability(None, 0, method, reason="no block has a run that reached the goal first")
    p = float(scipy_stats().binomtest(won, n).pvalue)
    return Probability(p, n, method, smallest=2 / 2**n)


def _beats(one: ReachTime, other: ReachTime) -> bool:
    # A miss at the very same time is later, as in Kaplan and Meier's estimate.
    return one.reached and (one.time_s < other.time_s or (one.time_s == other.time_s and not other.reached))
