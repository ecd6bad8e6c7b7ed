"""Change points of a series: where its level changed for good, by how much, and how certain the place is.

1. Seeded binary segmentation finds candidates (Kovács, Bühlmann, Li and Munk, Seeded binary segmentation, Biometrika
   110, 2023). The implementation is that of changeforest (Londschien, Bühlmann and Kovács, Random forests for change
   point detection, JMLR 24, 2023).
2. A t test removes the weakest candidate until all that remain are significant (Fleming et al., Hunter: using change
   point detection to hunt for performance regressions, ICPE 2023). Here its variance takes the autocorrelation of the
   series into account, because neighboring measurements of one machine resemble each other.
3. The place of each change gets an interval from its posterior distribution (Smith, A Bayesian approach to inference
   about a change-point in a sequence of random variables, Biometrika 62, 1975).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lightning_perf.lazy_imports import import_extra
from lightning_perf.statistics.distributions import t_cdf, t_quantile
from lightning_perf.statistics.values import Estimate, Float64Array

FEWEST_IN_SEGMENT = 3
"""Values on each side of a change. Two could be outliers."""

FEWEST_VALUES = 2 * FEWEST_IN_SEGMENT
"""Shorter series have no change points."""

GAIN = 3.0
"""A candidate reduces the sum of squares by at least this many times the variance of the noise times log n."""

LEVEL = 0.001
"""Significance level of each change point, as in Hunter."""

LEAST_AUTOCORRELATION = 0.2
"""Short series show too little of their autocorrelation. With this floor, autocorrelated series have half as many false
alarms, see benchmarks/results/history.md."""

MOST_AUTOCORRELATION = 0.9


@dataclass(frozen=True)
class ChangePoint:
    """A place where the level of a series changed.

    Attributes:
        position: Index of the first value after the change.
        low: The smallest index in the interval of the position.
        high: The largest index in the interval of the position.
        change: Difference of the levels, after minus before, with its interval.
    """

    position: int
    low: int
    high: int
    change: Estimate
    p: float


@dataclass(frozen=True)
class Segmentation:
    """A series divided at its change points.

    Attributes:
        changes: The change points in order.
        starts: Index of the first value of each segment.
        sd: Standard deviation of the values around their segment's mean, or None.
        df: Its degrees of freedom, reduced for autocorrelation.
        autocorrelation: Correlation of neighboring values within segments, at least `LEAST_AUTOCORRELATION`.
    """

    changes: tuple[ChangePoint, ...]
    starts: tuple[int, ...]
    levels: tuple[float, ...]
    sd: float | None
    df: float
    autocorrelation: float
    size: int

    @property
    def equal(self) -> bool:
        """Whether all values of each segment are equal, and some segment has more than one."""
        return self.sd is None and self.size > len(self.starts)

    def segment_of(self, position: int) -> int:
        """Return the number of the segment that a value belongs to."""
        return max(number for number, start in enumerate(self.starts) if start <= position)

    def length(self, segment: int) -> int:
        """Return the number of values of a segment."""
        return (*self.starts, self.size)[segment + 1] - self.starts[segment]


def find_changes(values: Float64Array, confidence: float = 0.95) -> Segmentation:
    """Find the change points of a series.

    Args:
        values: At least one finite value, in order of time. Take logarithms of times, so that changes are ratios.

    Raises:
        MissingExtraError: changeforest or scipy is not installed.

    Example:
        >>> steps = np.log([10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 12.0, 12.1, 11.9, 12.0, 12.1, 11.9])
        >>> [(change.position, change.low, change.high) for change in find_changes(steps).changes]
        [(6, 6, 6)]
    """
    cuts = _candidates(values)
    while True:
        noise = _noise(values, cuts)
        tests = [
            _test(values, before, cut, after, noise, confidence) for before, cut, after in _neighbors(values, cuts)
        ]
        weakest = max(range(len(tests)), key=lambda number: tests[number][1], default=None)
        if weakest is None or tests[weakest][1] < LEVEL:
            break
        del cuts[weakest]
    bounds = [0, *cuts, len(values)]
    changes = []
    for (before, cut, after), (change, p) in zip(_neighbors(values, cuts), tests, strict=True):
        low, high = _place(values[before:after], noise, confidence)
        changes.append(ChangePoint(cut, min(cut, before + low), max(cut, before + high), change, p))
    return Segmentation(
        changes=tuple(changes),
        starts=tuple(bounds[:-1]),
        levels=tuple(float(values[start:end].mean()) for start, end in pairwise(bounds)),
        sd=noise.sd,
        df=noise.df,
        autocorrelation=noise.autocorrelation,
        size=len(values),
    )


def predict(series: Segmentation, segment: int, value: float, share: float, confidence: float = 0.95) -> Estimate:
    """Compare a new value with a segment: its difference from the level, with a prediction interval.

    The interval allows for the noise of the level and of the new value (Hahn and Meeker, Statistical Intervals, 1991,
    section 4.7).

    Args:
        share: Variance of the new value in units of the series' variance: 1 if it is measured like the others.
    """
    length = series.length(segment)
    difference, method = value - series.levels[segment], "prediction interval from the history"
    if series.sd is None:
        reason = "the rows of the history are equal" if series.equal else "the history has too few rows"
        return Estimate(difference, None, None, confidence, length, method, reason)
    variance = _inflation(series.autocorrelation) / length + share
    reach = t_quantile(0.5 + confidence / 2, series.df) * series.sd * math.sqrt(variance)
    return Estimate(difference, difference - reach, difference + reach, confidence, length, method)


@dataclass(frozen=True)
class _Noise:
    sd: float | None
    df: float
    autocorrelation: float


def _candidates(values: Float64Array) -> list[int]:
    if len(values) < FEWEST_VALUES or not np.ptp(values):
        return []
    forest = import_extra("changeforest", "compare")
    # Differences of neighbors show the noise without the changes of the level.
    scale = math.sqrt(float(np.mean(np.diff(values) ** 2)) / 2)
    control = forest.Control(
        # Slightly less than a whole number, so that rounding does not add one.
        minimal_relative_segment_length=(FEWEST_IN_SEGMENT - 0.01) / len(values),
        minimal_gain_to_split=GAIN * math.log(len(values)),
    )
    centered = (values - values.mean()) / scale
    return sorted(forest.changeforest(centered[:, None], "change_in_mean", "sbs", control).split_points())


def _neighbors(values: Float64Array, cuts: list[int]) -> list[tuple[int, int, int]]:
    bounds = [0, *cuts, len(values)]
    return list(zip(bounds, bounds[1:], bounds[2:], strict=False))


def _noise(values: Float64Array, cuts: list[int]) -> _Noise:
    """Estimate the noise around the levels: its spread, and the correlation of neighboring values."""
    rest = np.concatenate([part - part.mean() for part in np.split(values, cuts)])
    squares, segments = float((rest**2).sum()), len(cuts) + 1
    if len(values) <= segments or squares <= (1e-12 * float(np.abs(values).max())) ** 2:
        return _Noise(None, 1.0, LEAST_AUTOCORRELATION)
    lag_one = float((rest[1:] * rest[:-1]).sum()) / squares
    # Around estimated means it is too low (Kendall, Note on bias in the estimation of autocorrelation, 1954).
    lag_one += (1 + 3 * lag_one) * segments / len(values)
    correlation = min(max(lag_one, LEAST_AUTOCORRELATION), MOST_AUTOCORRELATION)
    df = len(values) - segments
    return _Noise(math.sqrt(squares / df), max(1.0, df / _inflation(correlation)), correlation)


def _inflation(correlation: float) -> float:
    """Return the factor by which autocorrelation of first order increases the variance of a mean."""
    return (1 + correlation) / (1 - correlation)


def _test(
    values: Float64Array, before: int, cut: int, after: int, noise: _Noise, confidence: float
) -> tuple[Estimate, float]:
    """Return the difference of the levels at a cut with its interval, and its p-value."""
    difference = float(values[cut:after].mean() - values[before:cut].mean())
    n, method = after - before, "t interval with autocorrelation"
    if noise.sd is None:  # equal values on each side
        return Estimate(difference, difference, difference, confidence, n, method), 0.0
    error = noise.sd * math.sqrt(_inflation(noise.autocorrelation) * (1 / (cut - before) + 1 / (after - cut)))
    reach = t_quantile(0.5 + confidence / 2, noise.df) * error
    p = 2 * t_cdf(-abs(difference) / error, noise.df)
    return Estimate(difference, difference - reach, difference + reach, confidence, n, method), p


def _place(values: Float64Array, noise: _Noise, confidence: float) -> tuple[int, int]:
    """Return the credible interval of the position of one change, as indices of the first value after it.

    All positions are equally likely at first. Autocorrelated values count as fewer independent ones.
    """
    n = len(values)
    cuts = np.arange(1, n)
    sums, squares = np.cumsum(values - values.mean()), float(((values - values.mean()) ** 2).sum())
    # Smallest to the rounding error, so that a series without noise has one position.
    rest = np.maximum(squares - sums[:-1] ** 2 * n / (cuts * (n - cuts)), 1e-12 * squares + 1e-300)
    weight = -0.5 * np.log(cuts * (n - cuts)) - (n - 2) / 2 / _inflation(noise.autocorrelation) * np.log(rest)
    weight = np.exp(weight - weight.max())
    order = np.argsort(-weight, kind="stable")
    needed = int(np.searchsorted(np.cumsum(weight[order]), confidence * weight.sum())) + 1
    kept = cuts[order[:needed]]
    return int(kept.min()), int(kept.max())
