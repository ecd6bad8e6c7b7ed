"""Periodic steps: every n-th step of a run takes longer than the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from lightning_perf.trace.columns import BoolArray, Int64Array

__all__ = ["PeriodicSteps", "find_period"]

LONGER = 0.25
LONGER_NS = 1_000_000
"""Excess over the median from which a step counts as long: a share of it, and a time."""

LIMIT_SCALES = (1, 2, 4, 8)
"""Multiples of that excess that are tried, the smallest first."""

LEAST_LONG = 4
"""Long steps that a period needs."""

MOST_LONG = 0.8
"""Share of the steps of a period that have to be long."""

FEW_LONG = 0.2
"""Share of the other steps that may be long for other reasons."""

CANDIDATES = 5
"""Distances between long steps that are tried as a period, the most frequent first."""


@dataclass(frozen=True)
class PeriodicSteps:
    """Steps of a run that take longer at regular distances.

    Attributes:
        period: Every how many steps.
        steps: Number of these steps.
        step_ns: Their median step time.
        others_ns: Median time of the other steps.
    """

    period: int
    steps: int
    step_ns: int
    others_ns: int

    @property
    def per_step_ns(self) -> float:
        """The extra time, divided among all steps."""
        return (self.step_ns - self.others_ns) / self.period


def find_period(number: Int64Array, step_ns: Int64Array) -> PeriodicSteps | None:
    """Find the period of long steps.

    Args:
        number: Number of each step in the run, ascending. Some may be missing.
        step_ns: Its time.

    Returns:
        The period, or None if long steps are few or irregular.

    Example:
        >>> number = np.arange(100)
        >>> find_period(number, np.where(number % 10 == 9, 400_000_000, 100_000_000))
        PeriodicSteps(period=10, steps=10, step_ns=400000000, others_ns=100000000)
    """
    if len(number) <= LEAST_LONG:
        return None
    excess_ns = step_ns - float(np.median(step_ns))
    limit_ns = max(LONGER * float(np.median(step_ns)), LONGER_NS)
    # On a busy machine many steps are somewhat long. A higher limit leaves those with a cause of their own.
    found = (_period_of(number, step_ns, excess_ns > scale * limit_ns) for scale in LIMIT_SCALES)
    return next((periodic for periodic in found if periodic is not None), None)


def _period_of(number: Int64Array, step_ns: Int64Array, long: BoolArray) -> PeriodicSteps | None:
    """Find the period of the steps that are marked as long."""
    if int(long.sum()) < LEAST_LONG:
        return None
    distances = Counter(np.diff(number[long]).tolist())
    for period, _ in distances.most_common(CANDIDATES):
        if period < 2:
            continue
        phase = Counter((number[long] % period).tolist()).most_common(1)[0][0]
        members = number % period == phase
        if int(members.sum()) < LEAST_LONG or not (~members).any():
            continue
        if float(long[members].mean()) >= MOST_LONG and float(long[~members].mean()) <= FEW_LONG:
            return PeriodicSteps(
                period=int(period),
                steps=int(members.sum()),
                step_ns=round(float(np.median(step_ns[members]))),
                others_ns=round(float(np.median(step_ns[~members]))),
            )
    return None
