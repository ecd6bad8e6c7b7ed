"""Exact permutation tests: how likely the labels alone give a difference as large as the observed one.

`scipy.stats.permutation_test` is not used. It refuses a sample of one value, and counts arrangements as different if
their statistics agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from math import comb

import numpy as np

from lightning_perf.statistics.values import Float64Array, Numbers, Probability, finite

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
    """Two-sided permutation test of two unpaired samples, statistic: the difference of their means.

    Returns:
        The p-value; None if an arm is empty or all values are equal.
    """
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
