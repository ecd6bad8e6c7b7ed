"""Hodges–Lehmann estimates: a typical difference that one odd run cannot move, with exact rank intervals."""

from __future__ import annotations

import numpy as np

from lightning_perf.statistics.distributions import rank_sum_counts, signed_rank_counts
from lightning_perf.statistics.values import Estimate, Float64Array, Numbers, finite

__all__ = ["hodges_lehmann_shift", "walsh_interval"]

MAX_RUNS = 50
"""Runs an arm up to which the rank distributions are exact in the numbers used here."""


def walsh_interval(differences: Numbers, confidence: float = 0.95) -> Estimate:
    """Median of the Walsh averages of paired differences, with the interval of the exact signed-rank test.

    Args:
        differences: One a block.
        confidence: The least coverage; the rank distribution is discrete, so the true one is at or above it.

    Returns:
        The estimate, its `confidence` the true one. Fewer than 6 differences have no 95 % interval.

    Example:
        >>> walsh = walsh_interval([1.0, 2.0, 3.0, 4.0, 5.0, 9.0])
        >>> walsh.value, walsh.low, walsh.high, walsh.confidence
        (3.5, 1.0, 9.0, 0.96875)
    """
    values = finite(differences)
    n, method = len(values), "Walsh averages, signed-rank interval"
    if not n:
        return Estimate(None, None, None, confidence, 0, method, "there are no differences")
    if n > MAX_RUNS:
        return Estimate(None, None, None, confidence, n, method, f"more than {MAX_RUNS} pairs: use the t interval")
    row, column = np.triu_indices(n)
    averages = np.sort((values[row] + values[column]) / 2)
    return _order_interval(averages, signed_rank_counts(n), confidence, n, method)


def hodges_lehmann_shift(base: Numbers, candidate: Numbers, confidence: float = 0.95) -> Estimate:
    """Median of all differences candidate - baseline of unpaired runs, with the interval of the exact rank-sum test.

    Args:
        base: One value a run.
        candidate: The same of the candidate.
        confidence: The least coverage.

    Returns:
        The estimate, its `confidence` the true one.
    """
    a, b = finite(base), finite(candidate)
    n, method = min(len(a), len(b)), "Hodges–Lehmann, rank-sum interval"
    if not n:
        return Estimate(None, None, None, confidence, 0, method, "an arm has no runs with a number")
    if len(a) + len(b) > MAX_RUNS:
        return Estimate(None, None, None, confidence, n, method, f"more than {MAX_RUNS} runs: use the t interval")
    shifts = np.sort(np.subtract.outer(b, a).ravel())
    return _order_interval(shifts, rank_sum_counts(len(a), len(b)).astype(np.float64), confidence, n, method)


def _order_interval(ordered: Float64Array, counts: Float64Array, confidence: float, n: int, method: str) -> Estimate:
    """The interval between the k-th smallest and k-th largest, k from the null distribution of the rank statistic."""
    value = float(np.median(ordered))
    tails = 2 * np.cumsum(counts) / counts.sum()
    outside = int(np.searchsorted(tails, 1 - confidence, side="right"))
    if not outside:
        return Estimate(value, None, None, confidence, n, method, f"too few runs for a {confidence:.1%} rank interval")
    true_confidence = 1 - float(tails[outside - 1])
    return Estimate(value, float(ordered[outside - 1]), float(ordered[-outside]), true_confidence, n, method)
