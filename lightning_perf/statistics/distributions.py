"""scipy, imported on first use, and the exact null distributions of the rank tests.

Quantiles come from scipy.special: it imports faster than scipy.stats, and tune needs nothing else.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_perf.extras import import_extra
from lightning_perf.statistics.values import Float64Array

__all__ = [
    "chi_square_quantile",
    "f_quantile",
    "normal_cdf",
    "rank_sum_counts",
    "scipy_stats",
    "signed_rank_counts",
    "t_cdf",
    "t_quantile",
]


def scipy_stats() -> Any:
    """Return the module scipy.stats.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    return import_extra("scipy.stats", "compare")


def _special() -> Any:
    return import_extra("scipy.special", "compare")


def t_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t."""
    return float(_special().stdtrit(df, probability))


def t_cdf(value: float, df: float) -> float:
    """Cumulative distribution of Student's t."""
    return float(_special().stdtr(df, value))


def normal_cdf(values: Float64Array) -> Float64Array:
    """Cumulative distribution of the standard normal."""
    result: Float64Array = _special().ndtr(values)
    return result


def f_quantile(probability: float, df_numerator: float, df_denominator: float) -> float:
    """Quantile of Fisher's F."""
    return float(_special().fdtri(df_numerator, df_denominator, probability))


def chi_square_quantile(probabilities: Float64Array, df: float) -> Float64Array:
    """Quantiles of chi-square."""
    result: Float64Array = 2 * _special().gammaincinv(df / 2, probabilities)
    return result


@lru_cache(maxsize=64)
def signed_rank_counts(n: int) -> Float64Array:
    """How many of the 2^n sign patterns give each signed-rank sum 0 … n(n+1)/2 (float: exact up to n = 52)."""
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
    """How many of the C(n+m, n) assignments give each Mann–Whitney U 0 … nm: the Gaussian binomial coefficients."""
    if comb(n + m, n) >= 2**62:
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
