"""The values that statistics return."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "Float64Array", "Numbers", "Probability", "finite", "finite_pairs"]

Float64Array = NDArray[np.float64]

Numbers: TypeAlias = "Sequence[float | None] | Float64Array"
"""One number a run, None where a run has none."""


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: The point estimate, or None.
        low: Lower end of the interval, or None.
        high: Upper end of the interval, or None.
        confidence: What the interval covers in the long run, 0 to 1.
        n: Runs (or pairs of runs) it is over.
        method: How it was computed.
        reason: Why something is None.
    """

    value: float | None
    low: float | None
    high: float | None
    confidence: float
    n: int
    method: str
    reason: str | None = None

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Apply a monotonic function, as `math.exp` to come back from logarithms; a falling one swaps the ends.

        Example:
            >>> round(Estimate(0.5, 0.25, 0.8, 0.95, 6, "t").map(lambda ratio: 1 / ratio).high, 2)
            4.0
        """

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


@dataclass(frozen=True)
class Probability:
    """A p-value.

    Attributes:
        p: The p-value, two-sided, or None.
        n: Runs (or pairs of runs) it is over.
        method: The test.
        smallest: The smallest p-value that this test can give at this size; None where it has no such floor.
        reason: Why the p-value is None.
    """

    p: float | None
    n: int
    method: str
    smallest: float | None = None
    reason: str | None = None


def finite(values: Numbers) -> Float64Array:
    """The values that are numbers: None, nan and infinities are left out."""
    return np.array([v for v in values if v is not None and math.isfinite(v)], dtype=np.float64)


def finite_pairs(base: Numbers, candidate: Numbers) -> tuple[Float64Array, Float64Array] | str:
    """The pairs that are numbers on both sides, or why there are none.

    Args:
        base: One value a block of the baseline.
        candidate: One value a block of the candidate, in the same order.

    Returns:
        Both sides, same length; a string says why they cannot be paired.
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
