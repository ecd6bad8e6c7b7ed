"""How many times as long one sample of times is as another, with an interval that assumes no distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

__all__ = ["Ratio", "ratio_of"]


@dataclass(frozen=True)
class Ratio:
    """A ratio and its interval.

    Attributes:
        estimate: The ratio.
        low: Lower end of the interval.
        high: Upper end.
        level: Confidence of the interval.
    """

    estimate: float
    low: float
    high: float
    level: float


def ratio_of(after: Sequence[int], before: Sequence[int], *, level: float = 0.95) -> Ratio | None:
    """Estimate how many times as long the times after are as the times before.

    Hodges and Lehmann's estimator, on logarithms: the median of all quotients of a time after by a time before. Its
    interval is the one that inverts Wilcoxon's rank-sum test, by the large-sample formula (Hollander, Wolfe & Chicken,
    Nonparametric Statistical Methods, 3rd ed., 2014, section 4.3). It takes the times of a sample for independent; a
    run's are nearly so but for slow drifts, so that a drift of the machine shows as a change.

    Args:
        after: Times after, all positive.
        before: Times before, all positive.
        level: Confidence of the interval.

    Returns:
        The ratio, or None where there are too few times for an interval at that level.

    Example:
        >>> before, after = list(range(95, 106)), list(range(190, 212, 2))
        >>> ratio = ratio_of(after, before)
        >>> round(ratio.estimate, 2), round(ratio.low, 2), round(ratio.high, 2)
        (2.0, 1.94, 2.06)
    """
    n, m = len(after), len(before)
    if not n or not m:
        return None
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rank = math.floor(n * m / 2 - z * math.sqrt(n * m * (n + m + 1) / 12))
    if rank < 1:
        return None
    quotients = np.sort(np.divide.outer(np.asarray(after, dtype=float), np.asarray(before, dtype=float)), axis=None)
    return Ratio(float(np.median(quotients)), float(quotients[rank - 1]), float(quotients[n * m - rank]), level)
