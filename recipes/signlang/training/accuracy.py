"""Accuracy with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Accuracy", "wilson"]

_Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers.

    Attributes:
        share: The share, 0 to 1.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
        units: Independent trials behind the interval.
    """

    share: float
    low: float
    high: float
    units: int

    def __str__(self) -> str:
        """For example ``90.0 % (95 % interval 82.6 to 94.5 %)``."""
        return f"{100 * self.share:.1f} % (95 % interval {100 * self.low:.1f} to {100 * self.high:.1f} %)"


def wilson(share: float, units: int) -> Accuracy:
    """The score interval of a proportion (Wilson, J. Am. Stat. Assoc. 22, 1927).

    Copies of one capture are right or wrong together: the units are captures where they were held out whole, so the
    interval is as wide as the evidence is thin.

    Args:
        share: Share of right answers.
        units: Independent trials, at least 1.

    Examples:
        >>> str(wilson(0.9, 100))
        '90.0 % (95 % interval 82.6 to 94.5 %)'
    """
    denominator = 1 + _Z95**2 / units
    centre = (share + _Z95**2 / (2 * units)) / denominator
    half = _Z95 * math.sqrt(share * (1 - share) / units + _Z95**2 / (4 * units**2)) / denominator
    return Accuracy(share, max(0.0, centre - half), min(1.0, centre + half), units)
