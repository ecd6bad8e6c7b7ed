"""Tests of "not worse by a margin" and "practically equal". A missing difference does not prove either."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from lightning_perf.statistics.distributions import t_cdf, t_quantile
from lightning_perf.statistics.location import Difference

__all__ = ["Kept", "NonInferiority", "non_inferiority"]


class Kept(str, Enum):
    """Whether the candidate is as good as the baseline up to the margin."""

    KEPT = "kept"
    LOST = "lost"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class NonInferiority:
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

    Args:
        difference: Candidate - baseline.
        margin: The largest loss that does not matter; positive, declared before looking at the runs.
        confidence: The confidence of the one-sided bound.

    Returns:
        The outcome. Without a known spread it is undecided, with the reason.

    Raises:
        ValueError: The margin is not a positive number.
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
