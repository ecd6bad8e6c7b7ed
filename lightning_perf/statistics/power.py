"""The effect that a study of a given size can find, and the size that an effect needs."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np

from lightning_perf.statistics.distributions import chi_square_quantile, normal_cdf, t_quantile
from lightning_perf.statistics.values import Float64Array

MAX_BLOCKS = 1000


@lru_cache(maxsize=256)
def _relative_sd(df: int) -> Float64Array:
    """Return the distribution of sample SD / true SD as equally likely values."""
    points = (np.arange(4000) + 0.5) / 4000
    scaled: Float64Array = np.sqrt(chi_square_quantile(points, df) / df)
    return scaled


def paired_power(effect: float, n: int, confidence: float = 0.95) -> float:
    """Return the power of the two-sided paired t test.

    It averages over the distribution of the sample SD. The non-central t distribution of scipy gives nan at large
    effects.

    Args:
        effect: True mean difference in units of the differences' standard deviation.
    """
    limits = t_quantile(0.5 + confidence / 2, n - 1) * _relative_sd(n - 1)
    shift = abs(effect) * math.sqrt(n)
    return float((normal_cdf(shift - limits) + normal_cdf(-shift - limits)).mean())


def minimal_detectable_effect(n: int, power: float = 0.8, confidence: float = 0.95) -> float | None:
    """Return the smallest effect that a paired t test finds with the given power.

    Args:
        n: Pairs.
        power: Share of studies that find it.
        confidence: 1 minus the level of the test.

    Returns:
        The effect in units of the differences' standard deviation; None below two pairs.

    Example:
        >>> [round(minimal_detectable_effect(n), 2) for n in (3, 6, 20)]
        [3.26, 1.43, 0.66]
    """
    if n < 2:
        return None
    low, high = 0.0, 1.0
    while paired_power(high, n, confidence) < power:
        low, high = high, high * 2
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if paired_power(middle, n, confidence) >= power else (middle, high)
    return high


def blocks_needed(effect: float, power: float = 0.8, confidence: float = 0.95) -> int | None:
    """Return the pairs with which a paired t test finds an effect with the given power.

    Args:
        effect: The effect in units of the differences' standard deviation.

    Returns:
        The number, at least 2; None above 1000 or for no effect at all.
    """
    if effect == 0 or paired_power(effect, MAX_BLOCKS, confidence) < power:
        return None
    smaller = range(2, MAX_BLOCKS)  # the largest number is known to be enough
    return 2 + bisect_left(smaller, power, key=lambda n: paired_power(effect, n, confidence))
