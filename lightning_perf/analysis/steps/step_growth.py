"""Steps that take longer and longer over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lightning_perf.trace.columns import Float64Array, Int64Array

BLOCKS = 32
"""The run is divided into so many blocks at most. Each counts with its lower quartile, which load hardly moves."""

LEAST_STEPS = 32
"""Steps that are needed to see growth."""

QUARTERS = 4

STEADY = 0.25
"""Growth rises from each quarter of the run to the next by at least this share of the mean rise. A change at one place,
such as larger images from some step on, does not."""

LEAST_GROWTH = 0.25
"""Share of the first steps by which the last ones have to be longer, at the lower end of the interval."""

Z_95 = 1.959964
"""Quantile of the normal distribution for an interval of 95 %."""


@dataclass(frozen=True)
class StepGrowth:
    """Steps that take longer and longer.

    Attributes:
        first_ns: Step time at the start of the run, by the fitted line.
        last_ns: Step time at its end.
        slope_ns: Growth per step (Theil-Sen).
        slope_low_ns: Lower end of its 95 % interval.
        slope_high_ns: Upper end.
        wait_share: Share of the growth in waits for data, 0 to 1.
        excess_ns: Mean time of a step beyond the first steps.
    """

    first_ns: int
    last_ns: int
    slope_ns: float
    slope_low_ns: float
    slope_high_ns: float
    wait_share: float
    excess_ns: int

    @property
    def growth(self) -> float:
        """Time of the last steps over that of the first, minus 1."""
        return self.last_ns / self.first_ns - 1


def find_growth(number: Int64Array, step_ns: Int64Array, wait_ns: Int64Array, amount: Int64Array) -> StepGrowth | None:
    """Find out whether the steps of a run get longer and longer.

    Args:
        number: Number of each step in the run, ascending.
        amount: Tokens or samples of each step, -1 where unknown. Steps that grow with them are no problem.

    Example:
        >>> number = np.arange(100)
        >>> growth = find_growth(number, 1_000_000 + 50_000 * number, 0 * number, 0 * number - 1)
        >>> growth.slope_ns, growth.slope_low_ns, round(growth.growth, 1)
        (50000.0, 50000.0, 5.0)
        >>> find_growth(number, np.where(number < 40, 1_000_000, 4_000_000), 0 * number, 0 * number - 1) is None
        True
    """
    if len(number) < LEAST_STEPS or not step_ns.all():
        return None
    if (amount > 0).all() and not _grows(number, step_ns / amount):
        return None
    found = _grows(number, step_ns.astype(np.float64))
    if found is None:
        return None
    at, level, slope, low, high = found
    first = max(float(np.median(level - slope * (at - number[0]))), 1.0)
    waits = _levels(wait_ns.astype(np.float64))
    waited = _theil_sen(at, waits)[0] / slope
    return StepGrowth(
        first_ns=round(first),
        last_ns=round(first + slope * float(number[-1] - number[0])),
        slope_ns=slope,
        slope_low_ns=low,
        slope_high_ns=high,
        wait_share=min(1.0, max(0.0, waited)),
        excess_ns=max(0, round(float(step_ns.mean()) - first)),
    )


def _grows(number: Int64Array, value: Float64Array) -> tuple[Float64Array, Float64Array, float, float, float] | None:
    """Return the places and levels of blocks, and the slope with its interval; None if the values do not grow."""
    at = _levels(number.astype(np.float64))
    level = _levels(value)
    slope, low, high = _theil_sen(at, level)
    rises = np.diff([float(np.median(part)) for part in np.array_split(level, QUARTERS)])
    grown = low * float(at[-1] - at[0])
    steady = bool((rises >= STEADY * rises.mean()).all())
    if not steady or grown < LEAST_GROWTH * float(np.median(level[: len(level) // QUARTERS])):
        return None
    return at, level, slope, low, high


def _blocks(steps: int) -> int:
    return min(BLOCKS, steps // 4)


def _levels(value: Float64Array) -> Float64Array:
    return np.array([float(np.percentile(part, 25)) for part in np.array_split(value, _blocks(len(value)))])


def _theil_sen(x: Float64Array, y: Float64Array) -> tuple[float, float, float]:
    """Return the median slope of all pairs, with its 95 % interval (Sen, JASA 1968)."""
    one, other = np.triu_indices(len(x), 1)
    slopes = np.sort((y[other] - y[one]) / (x[other] - x[one]))
    n, pairs = len(x), len(slopes)
    reach = Z_95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = round((pairs - reach) / 2), round((pairs + reach) / 2)
    return float(np.median(slopes)), float(slopes[max(low, 0)]), float(slopes[min(high, pairs - 1)])
