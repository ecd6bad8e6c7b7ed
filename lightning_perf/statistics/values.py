"""The types of statistical results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

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
    """Return the pairs that are numbers on both sides, or the reason why there are no pairs.

    Args:
        candidate: One value of the candidate per block, in the same order.

    Returns:
        Both sides, of the same length. A string says why they cannot be paired.
    """
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
