"""Change points of a series: where its level changed for good, by how much, and how certain the place is.

1. Seeded binary segmentation finds candidates (Kovács, Bühlmann, Li and Munk, Seeded binary segmentation, Biometrika
   110, 2023). The implementation is that of changeforest (Londschien, Bühlmann and Kovács, Random forests for change
   point detection, JMLR 24, 2023).
2. A t test removes the weakest candidate until all that remain are significant (Fleming et al., Hunter: using change
   point detection to hunt for performance regressions, ICPE 2023). Here its variance takes the autocorrelation of the
   series into account, because neighboring measurements of one machine resemble each other.
3. A change has to explain the series better than a straight line between its neighbors, and all changes together better
   than a trend with a season. A level that returns within a few values is an excursion, not a change for good.
4. The place of each change gets an interval from its posterior distribution (Smith, A Bayesian approach to inference
   about a change-point in a sequence of random variables, Biometrika 62, 1975).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from msgspec import Struct

from lightning_perf.lazy_imports import import_extra
from lightning_perf.statistics.values import Estimate, Float64Array, t_cdf, t_quantile

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

NEIGHBORS = 5
"""Values in the running median that shows single outliers."""

OUTLIER_SDS = 4
"""Robust standard deviations from the running median to which outliers are cut."""

BETTER_THAN_LINE = 4.0
"""A change reduces the sum of squares of a straight line by at least this many times the variance of the noise."""

LONGEST_EXCURSION = 10
"""Values at another level before the series returns."""

SHORTEST_START = 7
"""Values at the start at another level that count as an excursion, if five times as many follow at the next level."""

RETURNED = 0.35
"""Difference of the levels before and after an excursion, as a share of it."""

SHORTEST_PERIOD = 4
"""Values in the shortest season. A longer one is seen at least three quarters."""


class ChangePoint(Struct, frozen=True):
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


class Noise(Struct, frozen=True):
    """The scatter of values around their levels.

    Attributes:
        sd: Standard deviation; None if all values are at their level, or if there are too few.
        df: Degrees of freedom, reduced for autocorrelation.
        autocorrelation: Correlation of neighboring values, at least `LEAST_AUTOCORRELATION`.
    """

    sd: float | None
    df: float
    autocorrelation: float


class Segmentation(Struct, frozen=True):
    """A series divided at its change points.

    Attributes:
        starts: Index of the first value of each segment.
        levels: Mean of each segment, with outliers cut.
        noise: The values around their segment's level.
        excursions: First and last index of each excursion from a level.
        smooth: Whether a trend with a season explains the series better than changes, which are then left out.
    """

    changes: tuple[ChangePoint, ...]
    starts: tuple[int, ...]
    levels: tuple[float, ...]
    noise: Noise
    size: int
    excursions: tuple[tuple[int, int], ...] = ()
    smooth: bool = False

    @property
    def equal(self) -> bool:
        """Whether all values of each segment are equal, and some segment has more than one."""
        return self.noise.sd is None and self.size > len(self.starts)

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
    """
    tamed, excursions = _without_outliers(values), list[tuple[int, int]]()
    cuts = _find_cuts(tamed)
    while (place := _excursion(tamed, cuts)) is not None:
        start, end, offsets = place
        values, tamed = values.copy(), tamed.copy()
        values[start:end] -= offsets
        tamed[start:end] -= offsets
        excursions.append((start, end - 1))
        cuts = _find_cuts(tamed)
    smooth = bool(_candidates(tamed)) and _is_smooth(tamed, cuts)
    if smooth:
        cuts = []
    bounds = [0, *cuts, len(values)]
    noise = _noise(tamed, cuts)
    changes = []
    for before, cut, after in _neighbors(tamed, cuts):
        change, p = _test(tamed, before, cut, after, noise, confidence)
        low, high = _place(tamed[before:after], noise, confidence)
        changes.append(ChangePoint(cut, min(cut, before + low), max(cut, before + high), change, p))
    return Segmentation(
        changes=tuple(changes),
        starts=tuple(bounds[:-1]),
        levels=tuple(float(tamed[start:end].mean()) for start, end in pairwise(bounds)),
        noise=_noise(values, cuts),
        size=len(values),
        excursions=tuple(sorted(excursions)),
        smooth=smooth,
    )


def predict(series: Segmentation, segment: int, value: float, share: float, confidence: float = 0.95) -> Estimate:
    """Compare a new value with a segment: its difference from the level, with a prediction interval.

    The interval allows for the noise of the level and of the new value (Hahn and Meeker, Statistical Intervals, 1991,
    section 4.7). The new value has `share` times the variance of the series: 1 if it is measured like the others.
    """
    length = series.length(segment)
    difference, method = value - series.levels[segment], "prediction interval from the history"
    sd = series.noise.sd
    if sd is None:
        reason = "the rows of the history are equal" if series.equal else "the history has too few rows"
        return Estimate(difference, None, None, confidence, length, method, reason)
    variance = _inflation(series.noise.autocorrelation) / length + share
    reach = t_quantile(0.5 + confidence / 2, series.noise.df) * sd * math.sqrt(variance)
    return Estimate(difference, difference - reach, difference + reach, confidence, length, method)


def _without_outliers(values: Float64Array) -> Float64Array:
    """Cut single values that are far from the running median. A level that lasts three values stays."""
    n = len(values)
    if n < FEWEST_VALUES:
        return values
    starts = np.clip(np.arange(n) - NEIGHBORS // 2, 0, n - NEIGHBORS)
    median = np.median(values[starts[:, None] + np.arange(NEIGHBORS)], axis=1)
    rest = values - median
    reach = OUTLIER_SDS * 1.4826 * float(np.median(np.abs(rest)))
    return median + np.clip(rest, -reach, reach) if reach else values


def _find_cuts(values: Float64Array) -> list[int]:
    """Return the candidates that are left when the weakest was removed until all are significant."""
    cuts = _candidates(values)
    while cuts:
        noise = _noise(values, cuts)
        weakness = [_weakness(values, before, cut, after, noise) for before, cut, after in _neighbors(values, cuts)]
        if max(weakness) < 1:
            break
        del cuts[weakness.index(max(weakness))]
    return cuts


def _weakness(values: Float64Array, before: int, cut: int, after: int, noise: Noise) -> float:
    """Return how far a change is from significant against a constant and against a line; below 1 it is significant."""
    _, p = _test(values, before, cut, after, noise, 0.95)
    if noise.sd is None:
        return 0.0
    places = np.arange(after - before) - (after - before - 1) / 2
    slope = float(places @ values[before:after]) / float(places @ places)
    line = _squares(values[before:after]) - slope**2 * float(places @ places)
    gain = line - _squares(values[before:cut]) - _squares(values[cut:after])
    needed = BETTER_THAN_LINE * noise.sd**2 * _inflation(noise.autocorrelation)
    return max(p / LEVEL, needed / gain if gain > 0 else math.inf)


def _squares(values: Float64Array) -> float:
    return float(((values - values.mean()) ** 2).sum())


def _excursion(values: Float64Array, cuts: list[int]) -> tuple[int, int, Float64Array] | None:
    """Return start, end and offsets of short segments after which the level before them returns.

    A few values at the start of a long series count too: the level before them is not known.
    """
    bounds = [0, *cuts, len(values)]
    levels = np.array([values[start:end].mean() for start, end in pairwise(bounds)])
    lengths = np.diff(bounds)
    if cuts and lengths[0] <= SHORTEST_START and lengths[1] > 5 * lengths[0]:
        return 0, cuts[0], np.full(cuts[0], levels[0] - levels[1])
    for first in range(1, len(levels) - 1):
        for last in range(first, len(levels) - 1):
            start, end = bounds[first], bounds[last + 1]
            before, after = levels[first - 1], levels[last + 1]
            inside = levels[first : last + 1]
            apart = float(np.abs(inside - (before + after) / 2).max())
            if end - start <= LONGEST_EXCURSION and abs(after - before) < RETURNED * apart:
                return start, end, np.repeat(inside - (before + after) / 2, lengths[first : last + 1])
    return None


def _is_smooth(values: Float64Array, cuts: list[int]) -> bool:
    """Return whether a line with one sine fits better than the changes, by the Bayesian information criterion."""
    n = len(values)
    steps = sum(map(_squares, np.split(values, cuts)))
    places = np.arange(n) - (n - 1) / 2
    smooth = math.inf
    for frequency in np.arange(0.75 / n, 1 / SHORTEST_PERIOD, 0.25 / n):
        angle = 2 * math.pi * frequency * places
        columns = np.stack([np.ones(n), places / n, np.sin(angle), np.cos(angle)], axis=1)
        basis, _ = np.linalg.qr(columns)
        smooth = min(smooth, float(((values - basis @ (basis.T @ values)) ** 2).sum()))
    parameters = 5 - (2 * len(cuts) + 1)
    tiny = 1e-12 * _squares(values)
    return n * math.log((smooth + tiny) / (steps + tiny)) + parameters * math.log(n) < 0


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


def _noise(values: Float64Array, cuts: list[int]) -> Noise:
    """Estimate the noise around the levels: its spread, and the correlation of neighboring values."""
    rest = np.concatenate([part - part.mean() for part in np.split(values, cuts)])
    squares, segments = float((rest**2).sum()), len(cuts) + 1
    if len(values) <= segments or squares <= (1e-12 * float(np.abs(values).max())) ** 2:
        return Noise(None, 1.0, LEAST_AUTOCORRELATION)
    lag_one = float((rest[1:] * rest[:-1]).sum()) / squares
    # Around estimated means it is too low (Kendall, Note on bias in the estimation of autocorrelation, 1954).
    lag_one += (1 + 3 * lag_one) * segments / len(values)
    correlation = min(max(lag_one, LEAST_AUTOCORRELATION), MOST_AUTOCORRELATION)
    df = len(values) - segments
    return Noise(math.sqrt(squares / df), max(1.0, df / _inflation(correlation)), correlation)


def _inflation(correlation: float) -> float:
    """Return the factor by which autocorrelation of first order increases the variance of a mean."""
    return (1 + correlation) / (1 - correlation)


def _test(
    values: Float64Array, before: int, cut: int, after: int, noise: Noise, confidence: float
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


def _place(values: Float64Array, noise: Noise, confidence: float) -> tuple[int, int]:
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
