"""The types of statistical results, the description of one arm's runs, and scipy's distributions as plain functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from lightning_perf.lazy_imports import import_extra

Float64Array = NDArray[np.float64]

Numbers: TypeAlias = "Sequence[float | None] | Float64Array"
"""One number per run, None for a run without one."""


class Estimate(Struct, frozen=True):
    """A number with its interval.

    Attributes:
        value: The point estimate, or None.
        low: Lower end of the interval, or None.
        high: Upper end of the interval, or None.
        confidence: Coverage of the interval in the long run, 0 to 1.
        n: Runs (or pairs of runs) that it is over.
        method: The method of computation.
        reason: The reason for a missing value.
    """

    value: float | None
    low: float | None
    high: float | None
    confidence: float
    n: int
    method: str
    reason: str | None = None

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Apply a monotonic function, e.g. `math.exp` after logarithms. A falling one swaps the ends."""

        def image(value: float | None) -> float | None:
            if value is None:
                return None
            try:
                return function(value)
            except (OverflowError, ZeroDivisionError):
                return None

        low, high = image(self.low), image(self.high)
        if low is None or high is None:
            reason = self.reason or "the interval is too wide for a number"
            return replace(self, value=image(self.value), low=None, high=None, reason=reason)
        return replace(self, value=image(self.value), low=min(low, high), high=max(low, high))


class Probability(Struct, frozen=True):
    """A p-value.

    Attributes:
        p: The p-value, two-sided, or None.
        n: Runs (or pairs of runs) that it is over.
        method: The test.
        smallest: The smallest p-value that this test can give at this size; None for a test without such a limit.
        reason: The reason for a missing p-value.
    """

    p: float | None
    n: int
    method: str
    smallest: float | None = None
    reason: str | None = None


def finite(values: Numbers) -> Float64Array:
    """Return the finite values, without None, nan and infinities."""
    return np.array([v for v in values if v is not None and math.isfinite(v)], dtype=np.float64)


def finite_pairs(base: Numbers, candidate: Numbers) -> tuple[Float64Array, Float64Array] | str:
    """Return the pairs that are numbers on both sides, or the reason for a lack of pairs."""
    if len(base) != len(candidate):
        return f"the baseline has {len(base)} runs and the candidate {len(candidate)}: they cannot be paired"
    kept = [
        (b, c)
        for b, c in zip(base, candidate, strict=True)
        if b is not None and c is not None and math.isfinite(b) and math.isfinite(c)
    ]
    if not kept:
        return "no pair of runs has a number on both sides"
    columns = np.array(kept, dtype=np.float64)
    return columns[:, 0], columns[:, 1]


class Summary(Struct, frozen=True):
    """The measurements of one arm's runs. With few runs the percentiles describe these runs and estimate nothing.

    Attributes:
        n: Runs with a finite number.
        missing: Runs without one (None, nan or infinite).
        mean: Mean.
        sd: Standard deviation with n - 1; None for a single run.
        median: Median.
        q1: First quartile, linear between order statistics like `numpy.percentile`.
        q3: Third quartile.
        p90: 90th percentile.
        min: Smallest.
        max: Largest.
        reason: The reason for missing figures.
    """

    n: int
    missing: int
    mean: float | None
    sd: float | None
    median: float | None
    q1: float | None
    q3: float | None
    p90: float | None
    min: float | None
    max: float | None
    reason: str | None = None

    @property
    def constant(self) -> bool:
        """Whether there are at least two runs and all have exactly the same number."""
        return self.n > 1 and self.min == self.max


def describe(values: Numbers) -> Summary:
    """Summarize one number per run."""
    kept = finite(values)
    missing = len(values) - len(kept)
    if not len(kept):
        return Summary(0, missing, None, None, None, None, None, None, None, None, "no run has a number")
    q1, median, q3, p90 = (float(v) for v in np.percentile(kept, [25, 50, 75, 90]))
    return Summary(
        n=len(kept),
        missing=missing,
        mean=float(kept.mean()),
        sd=float(kept.std(ddof=1)) if len(kept) > 1 else None,
        median=median,
        q1=q1,
        q3=q3,
        p90=p90,
        min=float(kept.min()),
        max=float(kept.max()),
        reason=None if len(kept) > 1 else "a single run has no standard deviation",
    )


def scipy_stats() -> Any:
    """Return the module scipy.stats."""
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
