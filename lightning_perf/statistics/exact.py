"""Exact inference without a distribution: Hodges–Lehmann estimates with rank intervals, and permutation tests.

Paired values: the median of the Walsh averages. Unpaired values: the median of all differences or quotients between the
two samples. One odd run cannot move them.

`scipy.stats.permutation_test` is not used. It refuses a sample of one value, and counts arrangements as different if
their statistics agree up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations
from math import comb
from statistics import NormalDist

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.statistics.values import Estimate, Float64Array, Numbers, Probability, finite

MAX_RUNS = 50
"""Runs per arm up to which the rank distributions are exact in the numbers used here."""


class Ratio(Struct, frozen=True):
    """A ratio and its interval.

    Attributes:
        estimate: The ratio.
        low: Lower end of the interval.
        high: Upper end.
        level: Confidence of the interval.
    """

    estimate: float
    low: float
    high: float
    level: float


def walsh_interval(differences: Numbers, confidence: float = 0.95) -> Estimate:
    """Return the median of the Walsh averages of paired differences, with the interval of the exact signed-rank test.

    The rank distribution is discrete, so the true coverage is at or above `confidence`.
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


def signed_rank_test(differences: Numbers) -> Probability:
    """Test whether paired differences are symmetric about zero, with the exact signed-rank distribution.

    The test matches `walsh_interval`: p is at most 0.05 if the 95 % interval excludes zero.
    """
    values = finite(differences)
    n, method = len(values), "exact signed-rank test"
    if not n:
        return Probability(None, 0, method, reason="there are no differences")
    if n > MAX_RUNS:
        return Probability(None, n, method, reason=f"more than {MAX_RUNS} pairs: use the sign-flip test")
    row, column = np.triu_indices(n)
    averages = values[row] + values[column]
    statistic = int(np.sum(averages > 0)) + int(np.sum(averages == 0)) / 2
    tail = math.floor(min(statistic, len(averages) - statistic))
    counts = signed_rank_counts(n)
    p = min(1.0, 2 * float(counts[: tail + 1].sum()) / float(counts.sum()))
    return Probability(p, n, method, smallest=2.0 / 2**n)


def walsh_ratio(
    base: Sequence[float] | Float64Array, candidate: Sequence[float] | Float64Array, confidence: float = 0.95
) -> Estimate:
    """Return the typical ratio candidate / base of paired times: `walsh_interval` of the logarithms of the ratios.

    Common factors of a pair's two times cancel, e.g. a drift of the machine. From 12 pairs on, one disturbed pair
    hardly widens the interval, unlike Student's.
    """
    logarithms = np.log(np.asarray(candidate, dtype=np.float64) / np.asarray(base, dtype=np.float64))
    return walsh_interval(logarithms, confidence).map(math.exp)


def hodges_lehmann_shift(base: Numbers, candidate: Numbers, confidence: float = 0.95) -> Estimate:
    """Return the median of all differences of unpaired runs, with the interval of the exact rank-sum test."""
    a, b = finite(base), finite(candidate)
    n, method = min(len(a), len(b)), "Hodges–Lehmann, rank-sum interval"
    if not n:
        return Estimate(None, None, None, confidence, 0, method, "an arm has no runs with a number")
    if len(a) + len(b) > MAX_RUNS:
        return Estimate(None, None, None, confidence, n, method, f"more than {MAX_RUNS} runs: use the t interval")
    shifts = np.sort(np.subtract.outer(b, a).ravel())
    return _order_interval(shifts, rank_sum_counts(len(a), len(b)).astype(np.float64), confidence, n, method)


def hodges_lehmann_ratio(base: Sequence[float], candidate: Sequence[float], confidence: float = 0.95) -> Ratio | None:
    """Return the typical ratio candidate / base of two unpaired samples of times: the median of all quotients.

    The interval inverts Wilcoxon's rank-sum test by the large-sample formula (Hollander, Wolfe & Chicken, Nonparametric
    Statistical Methods, 3rd ed., 2014, section 4.3). It takes the times of a sample as independent. The steps of a run
    nearly are, except for slow drifts. A drift of the machine then looks like a change. Too few times have no ratio.
    """
    n, m = len(candidate), len(base)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    outside = math.floor(n * m / 2 - z * math.sqrt(n * m * (n + m + 1) / 12))
    if outside < 1:
        return None
    quotients = np.sort(np.divide.outer(np.asarray(candidate, np.float64), np.asarray(base, np.float64)), axis=None)
    low, high = _ends(quotients, outside)
    return Ratio(float(np.median(quotients)), low, high, confidence)


@lru_cache(maxsize=64)
def signed_rank_counts(n: int) -> Float64Array:
    """Count the sign patterns, of 2^n, for each signed-rank sum 0 … n(n+1)/2 (float: exact up to n = 52)."""
    counts = np.zeros(n * (n + 1) // 2 + 1)
    counts[0] = 1
    for rank in range(1, n + 1):
        shifted = np.zeros_like(counts)
        shifted[rank:] = counts[: len(counts) - rank]
        counts = counts + shifted
    counts.flags.writeable = False
    return counts


@lru_cache(maxsize=64)
def rank_sum_counts(n: int, m: int) -> NDArray[np.int64]:
    """Count the assignments, of C(n+m, n), for each Mann–Whitney U 0 … nm: the Gaussian binomial coefficients."""
    if math.comb(n + m, n) >= 2**62:
        raise OverflowError(f"{n} and {m} runs are beyond the exact rank-sum distribution")
    counts = np.zeros((n + 1, m + 1, n * m + 1), dtype=np.int64)
    counts[0, :, 0] = counts[:, 0, 0] = 1
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            # The largest value belongs to the first sample (and beats all j of the second) or to the second.
            counts[i, j, j:] = counts[i - 1, j, : n * m + 1 - j]
            counts[i, j] += counts[i, j - 1]
    result: NDArray[np.int64] = counts[n, m].copy()
    result.flags.writeable = False
    return result


def _order_interval(ordered: Float64Array, counts: Float64Array, confidence: float, n: int, method: str) -> Estimate:
    """Return the interval between the k-th smallest and k-th largest, k from the rank statistic's null distribution."""
    value = float(np.median(ordered))
    tails = 2 * np.cumsum(counts) / counts.sum()
    outside = int(np.searchsorted(tails, 1 - confidence, side="right"))
    if not outside:
        return Estimate(value, None, None, confidence, n, method, f"too few runs for a {confidence:.1%} rank interval")
    true_confidence = 1 - float(tails[outside - 1])
    return Estimate(value, *_ends(ordered, outside), true_confidence, n, method)


def _ends(ordered: Float64Array, outside: int) -> tuple[float, float]:
    """Return the values with one less than `outside` values beyond them on either side."""
    return float(ordered[outside - 1]), float(ordered[-outside])


MAX_EXACT = 2**16
"""Up to so many arrangements are all tried. Beyond that, a fixed number is drawn."""

DRAWS = 20_000
LEAST_DRAWS = 1000
MOST_NUMBERS = 2**23
"""Arrangements to draw: fewer of very many runs, so that time and memory grow with the number of runs only."""

TIE = 1e-9
"""Statistics this close, relative to the observed one, are equal. Rounding must not break ties."""


def sign_flip_test(differences: Numbers) -> Probability:
    """Two-sided sign-flip test of paired differences, statistic: their sum.

    If the settings do not differ, a block's difference is as likely to have the other sign. Every one of the 2^n
    patterns is tried (Fisher's randomization test). The order within blocks was randomized, so this test assumes no
    distribution. With n pairs the smallest p-value is 2 / 2^n: 5 pairs cannot get below 0.0625.

    Returns:
        The p-value; None without differences, or if all are zero.
    """
    values = finite(differences)
    n = len(values)
    method = "exact sign-flip permutation"
    if not n:
        return Probability(None, 0, method, reason="there are no differences")
    if not values.any():
        return Probability(None, n, method, reason="all differences are zero")
    observed = abs(float(values.sum())) * (1 - TIE)
    if 2**n > MAX_EXACT:
        rng = np.random.default_rng(0)
        drawn = [np.abs((rng.integers(0, 2, size=(count, n), dtype=np.int8) * 2 - 1) @ values) for count in _parts(n)]
        return _drawn(np.concatenate(drawn) >= observed, n, "sign-flip permutation")
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return Probability(float((np.abs(sums) >= observed).mean()), n, method, smallest=2.0 / 2**n)


def two_sample_test(base: Numbers, candidate: Numbers) -> Probability:
    """Two-sided permutation test of two unpaired samples, statistic: the difference of their means."""
    a, b = finite(base), finite(candidate)
    n, total = min(len(a), len(b)), len(a) + len(b)
    method = "exact permutation"
    if not n:
        return Probability(None, 0, method, reason="an arm has no runs with a number")
    pooled = np.concatenate([a, b])
    pooled = pooled - pooled.mean()
    if float(np.ptp(pooled)) <= TIE * float(np.abs(np.concatenate([a, b])).max()):
        return Probability(None, n, method, reason="all runs gave the same number")
    # With the pooled mean removed, the difference of means is proportional to one side's sum.
    observed = abs(float(pooled[: len(a)].sum()))
    limit = observed - TIE * max(observed, float(np.ptp(pooled)))
    count = comb(total, len(a))
    if count > MAX_EXACT:
        rng = np.random.default_rng(0)
        sums = [
            np.abs(rng.permuted(np.tile(pooled, (drawn, 1)), axis=1)[:, : len(a)].sum(axis=1))
            for drawn in _parts(total)
        ]
        return _drawn(np.concatenate(sums) >= limit, n, "permutation")
    rows = np.fromiter(chain.from_iterable(combinations(range(total), len(a))), dtype=np.intp, count=count * len(a))
    every: Float64Array = np.abs(pooled[rows.reshape(count, len(a))].sum(axis=1))
    smallest = (2.0 if len(a) == len(b) else 1.0) / count
    return Probability(float((every >= limit).mean()), n, method, smallest=smallest)


def _parts(n: int) -> Iterator[int]:
    """Yield how many arrangements of `n` values to draw at a time: as many as `MOST_NUMBERS` allows."""
    left = max(LEAST_DRAWS, min(DRAWS, MOST_NUMBERS // n))
    at_once = max(1, MOST_NUMBERS // n)
    while left > 0:
        yield min(left, at_once)
        left -= at_once


def _drawn(extreme: np.ndarray[tuple[int], np.dtype[np.bool_]], n: int, test: str) -> Probability:
    # The observed arrangement counts as one of the draws, or p could be zero (Phipson & Smyth, 2010).
    draws = len(extreme)
    return Probability((int(extreme.sum()) + 1) / (draws + 1), n, f"{test}, {draws:,} draws", smallest=1 / (draws + 1))
