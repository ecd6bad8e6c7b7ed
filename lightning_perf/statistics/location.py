"""The distance between two arms with Student's t, tests of "not worse by a margin", and the power of a study."""

from __future__ import annotations

import math
from bisect import bisect_left
from enum import Enum
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.statistics.values import (
    Estimate,
    Float64Array,
    Numbers,
    chi_square_quantile,
    finite,
    finite_pairs,
    normal_cdf,
    t_cdf,
    t_quantile,
)

PAIRED_T = "paired t"
WELCH_T = "Welch's t"

EQUAL_RUNS = "the runs of each arm are equal: no spread to judge by"
NO_RATIO = "a value is zero or negative: it has no ratio"

ROUNDING = 1e-12
"""Spread below this share of the values is rounding error of equal values."""


class Difference(Struct, frozen=True):
    """A mean difference, candidate minus baseline, with the inputs of its interval.

    Attributes:
        value: The mean difference, or None.
        standard_error: Its standard error, or None.
        df: Its degrees of freedom, or None.
        n: Pairs, or the smaller arm's runs if not paired.
        method: The method of computation.
        reason: The reason for a missing value.
    """

    value: float | None
    standard_error: float | None
    df: float | None
    n: int
    method: str
    reason: str | None = None


def paired_difference(base: Numbers, candidate: Numbers) -> Difference:
    """Return the mean of candidate minus baseline over blocks, in the same order for both.

    A block is left out if one of its runs lacks a number.
    """
    pairs = finite_pairs(base, candidate)
    if isinstance(pairs, str):
        return Difference(None, None, None, 0, PAIRED_T, pairs)
    differences = pairs[1] - pairs[0]
    n, value = len(differences), float(differences.mean())
    if n < 2:
        return Difference(value, None, None, n, PAIRED_T, "one pair of runs does not tell the spread")
    sd = float(differences.std(ddof=1))
    if sd <= ROUNDING * float(np.abs(pairs).max()):
        sd, value = 0.0, float(differences[0])
    return Difference(value, sd / math.sqrt(n), n - 1, n, PAIRED_T)


def unpaired_difference(base: Numbers, candidate: Numbers) -> Difference:
    """Return the difference of the two means, with Welch's standard error and Satterthwaite's degrees of freedom."""
    a, b = finite(base), finite(candidate)
    n = min(len(a), len(b))
    if n == 0:
        side = "baseline" if not len(a) else "candidate"
        return Difference(None, None, None, 0, WELCH_T, f"no run of the {side} has a number")
    value = float(b.mean() - a.mean())
    if n < 2:
        return Difference(value, None, None, n, WELCH_T, "a single run does not tell the spread")
    part_a, part_b = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    variance = part_a + part_b
    if math.sqrt(variance) <= ROUNDING * max(float(np.abs(a).max()), float(np.abs(b).max())):
        return Difference(value, 0.0, len(a) + len(b) - 2, n, WELCH_T)
    df = variance**2 / (part_a**2 / (len(a) - 1) + part_b**2 / (len(b) - 1))
    return Difference(value, math.sqrt(variance), df, n, WELCH_T)


def interval(difference: Difference, confidence: float = 0.95) -> Estimate:
    """Return the two-sided t interval of a mean difference."""
    value, error, df = difference.value, difference.standard_error, difference.df
    if value is None or error is None or df is None:
        return Estimate(value, None, None, confidence, difference.n, difference.method, difference.reason)
    reach = t_quantile(0.5 + confidence / 2, df) * error
    return Estimate(value, value - reach, value + reach, confidence, difference.n, difference.method)


def paired_ratio(base: Numbers, candidate: Numbers, confidence: float = 0.95, *, timed: bool = True) -> Estimate:
    """Return the ratio candidate / baseline over blocks: the geometric mean of their ratios, with its t interval.

    Blocks share a device and a seed, so their common factors cancel in each block's ratio. Run times are products of
    factors, hence the logarithms (Fleming & Wallace, How not to lie with statistics, CACM 1986).
    """
    return _ratio(base, candidate, confidence, paired=True, timed=timed)


def unpaired_ratio(base: Numbers, candidate: Numbers, confidence: float = 0.95, *, timed: bool = True) -> Estimate:
    """Return the ratio candidate / baseline of runs without blocks: geometric means, Welch's interval on logarithms."""
    return _ratio(base, candidate, confidence, paired=False, timed=timed)


def mean_ratio(base: Numbers, candidate: Numbers, confidence: float = 0.95, *, paired: bool) -> Estimate:
    """Return the ratio of the mean times, candidate / baseline: the total cost, in which rare slow runs count fully.

    For paired times, each end of the interval has the deviation of the blocks on its side, if that is larger than the
    standard deviation. A long tail then widens its side.
    """
    method = "ratio of means"
    if any(v is not None and v <= 0 for v in (*base, *candidate)):
        return Estimate(None, None, None, confidence, 0, method, NO_RATIO)
    pairs = finite_pairs(base, candidate) if paired else (finite(base), finite(candidate))
    if isinstance(pairs, str):
        return Estimate(None, None, None, confidence, 0, method, pairs)
    a, b = pairs
    n = min(len(a), len(b))
    if not n:
        return Estimate(None, None, None, confidence, 0, method, "an arm has no runs with a number")
    scale = max(float(a.max()), float(b.max()))
    a, b = a / scale, b / scale  # sums of very large values would be infinite
    value = float(b.mean() / a.mean())
    spread = (paired_difference if paired else unpaired_difference)(a / a.mean(), b / b.mean())
    if not spread.standard_error or spread.df is None:
        return Estimate(value, None, None, confidence, n, method, spread.reason or EQUAL_RUNS)
    below = above = spread.standard_error
    if paired:
        rest = b / b.mean() - a / a.mean()
        apart = (rest - np.median(rest)) * math.sqrt(2 / n / (n - 1))
        below, above = (max(below, float(np.linalg.norm(np.clip(sign * apart, 0, None)))) for sign in (-1, 1))
    t, log = t_quantile(0.5 + confidence / 2, spread.df), math.log(value)
    return Estimate(log, log - t * below, log + t * above, confidence, n, method).map(_exp)


def skewness(values: Float64Array) -> float:
    """Return the third standardized moment: positive if a few values are far larger than the others."""
    rest = values - values.mean() if len(values) else values
    square = float((rest**2).mean()) if len(values) else 0.0
    return float((rest**3).mean()) / square**1.5 if square > ROUNDING**2 else 0.0


def _ratio(base: Numbers, candidate: Numbers, confidence: float, *, paired: bool, timed: bool) -> Estimate:
    method = f"{PAIRED_T if paired else WELCH_T} on logarithms"
    if any(v is not None and v <= 0 for v in (*base, *candidate)):
        return Estimate(None, None, None, confidence, 0, method, NO_RATIO)
    logs = (
        [math.log(v) if v is not None and math.isfinite(v) else None for v in values] for values in (base, candidate)
    )
    difference = (paired_difference if paired else unpaired_difference)(*logs)
    if timed and difference.standard_error == 0:
        reason = f"all {difference.n} differences are equal: no spread to judge by" if paired else EQUAL_RUNS
        difference = replace(difference, standard_error=None, reason=reason)
    return replace(interval(difference, confidence).map(_exp), method=method)


def _exp(logarithm: float) -> float:
    """Return an error, not zero, for numbers too small for a float: zero has no ratio."""
    ratio = math.exp(logarithm)
    if not ratio:
        raise OverflowError
    return ratio


class Kept(str, Enum):
    """Whether the candidate is as good as the baseline up to the margin."""

    KEPT = "kept"
    LOST = "lost"
    UNDECIDED = "undecided"


class NonInferiority(Struct, frozen=True):
    """Whether the candidate's mean is at most a margin below the baseline's.

    Attributes:
        kept: Kept if the one-sided lower bound is above -margin; lost if the upper bound is below it.
        margin: The margin, declared before looking.
        lower_bound: One-sided lower bound of candidate - baseline, or None.
        upper_bound: One-sided upper bound, or None.
        confidence: The confidence of each bound.
        p: p-value of "lower by the margin or more"; None without bounds, and if all differences are equal.
        reason: The reason for missing bounds.
    """

    kept: Kept
    margin: float
    lower_bound: float | None
    upper_bound: float | None
    confidence: float
    p: float | None
    reason: str | None = None


def non_inferiority(difference: Difference, margin: float, confidence: float = 0.95) -> NonInferiority:
    """Test that higher is better and the candidate is not lower by the margin or more.

    The margin is the largest loss that does not matter; positive, declared before looking at the runs.
    """
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"the margin must be a positive number, not {margin}")
    value, error, df = difference.value, difference.standard_error, difference.df
    if value is None or error is None or df is None:
        return NonInferiority(Kept.UNDECIDED, margin, None, None, confidence, None, difference.reason)
    reach = t_quantile(confidence, df) * error
    low, high = value - reach, value + reach
    kept = Kept.KEPT if low > -margin else Kept.LOST if high < -margin else Kept.UNDECIDED
    p = 1 - t_cdf((value + margin) / error, df) if error else None
    return NonInferiority(kept, margin, low, high, confidence, p)


MAX_BLOCKS = 1000


@lru_cache(maxsize=256)
def _relative_sd(df: int) -> Float64Array:
    """Return the distribution of sample SD / true SD as equally likely values."""
    points = (np.arange(4000) + 0.5) / 4000
    scaled: Float64Array = np.sqrt(chi_square_quantile(points, df) / df)
    return scaled


def paired_power(effect: float, n: int, confidence: float = 0.95) -> float:
    """Return the power of the two-sided paired t test, for an effect in units of the differences' standard deviation.

    It averages over the distribution of the sample SD. The non-central t distribution of scipy gives nan at large
    effects.
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
    """Return the pairs with which a paired t test finds an effect with the given power; None above 1000.

    The effect is in units of the differences' standard deviation.
    """
    if effect == 0 or paired_power(effect, MAX_BLOCKS, confidence) < power:
        return None
    smaller = range(2, MAX_BLOCKS)  # the largest number is known to be enough
    return 2 + bisect_left(smaller, power, key=lambda n: paired_power(effect, n, confidence))
