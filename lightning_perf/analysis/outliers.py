"""Outliers: values that stand apart from the rest, by a robust rule."""

from __future__ import annotations

import numpy as np

from lightning_perf.trace.columns import BoolArray, Int64Array

__all__ = ["outlying"]

SCORE = 3.5
"""Modified z-score beyond which a value is one (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993)."""

LEAST_SHARE = 0.10
"""A value within a tenth of the median is no outlier: values that hardly differ have a deviation near zero."""


def outlying(values: Int64Array) -> BoolArray:
    """Which values stand apart: by their modified z-score, 0.6745 · |x − median| / MAD, and by a tenth of the median.

    Args:
        values: At least one value, none negative.

    Returns:
        A mask over the values.

    Example:
        >>> outlying(np.array([100, 101, 99, 100, 130, 100])).tolist()
        [False, False, False, False, True, False]
    """
    median = float(np.median(values))
    apart = np.abs(values - median)
    outside: BoolArray = (0.6745 * apart > SCORE * float(np.median(apart))) & (apart > LEAST_SHARE * median)
    return outside
