"""Runs that failed to learn, or did not finish. They are counted as an endpoint of their own, not averaged in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.statistics.distributions import scipy_stats
from lightning_perf.statistics.values import Estimate, Numbers, finite

LEAST_DROP = 0.10
"""The smallest distance of a collapsed run's accuracy below the median of all runs."""

MAD_FACTOR = 5 * 1.4826
"""A collapse is also beyond five robust standard deviations (1.4826 MAD is the SD of normal values)."""


LEAST_SHARE = 0.5
"""A loss or score that is worse than the baseline's median by at least this share makes a run diverged."""


@dataclass(frozen=True)
class CollapseCounts:
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
        return fisher_exact_p(self.baseline, self.of_baseline, self.candidate, self.of_candidate)

    def __str__(self) -> str:
        return f"{self.candidate} of {self.of_candidate}, in the baseline {self.baseline} of {self.of_baseline}"


def collapse_limit(accuracies: Numbers) -> float | None:
    """Return the accuracy below which a run counts as collapsed, if none was declared.

    Args:
        accuracies: The runs of all arms together, as shares of 1, so that a collapsed arm cannot set its own measure.

    Example:
        >>> limit = collapse_limit([0.86, 0.88, 0.91, 0.66, 0.89, 0.90])
        >>> round(limit, 3)
        0.737
    """
    values = finite(accuracies)
    if len(values) < 4:
        return None
    median = float(np.median(values))
    deviation = float(np.median(np.abs(values - median)))
    return median - max(LEAST_DROP, MAD_FACTOR * deviation)


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
    """Return a share of runs with its exact interval (Clopper & Pearson, 1934).

    Example:
        >>> none_of_six = clopper_pearson(0, 6)
        >>> none_of_six.value, round(none_of_six.high, 2)
        (0.0, 0.46)
    """
    if not 0 <= count <= n:
        raise ValueError(f"{count} of {n} runs is not a share")
    if n == 0:
        return Estimate(None, None, None, confidence, 0, "Clopper–Pearson", "there are no runs")
    ends = scipy_stats().binomtest(count, n).proportion_ci(confidence, method="exact")
    return Estimate(count / n, float(ends.low), float(ends.high), confidence, n, "Clopper–Pearson")


def fisher_exact_p(count_a: int, n_a: int, count_b: int, n_b: int) -> float | None:
    """Return the two-sided p-value of equal shares (Fisher's exact test).

    Returns:
        The p-value, or None if an arm has no runs.
    """
    if not n_a or not n_b:
        return None
    table = [[count_a, n_a - count_a], [count_b, n_b - count_b]]
    return float(scipy_stats().fisher_exact(table).pvalue)
