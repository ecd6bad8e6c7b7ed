"""When the ratio of two trainings' times is a gain, given how far a training differs from itself."""

from __future__ import annotations

import math

from lightning_perf.statistics.values import Estimate

__all__ = ["LEAST_ROUNDS", "MOST_ROUNDS", "is_gain", "is_loss", "noise_share"]

LEAST_ROUNDS = 6
"""Fewer have no 95 % interval."""
MOST_ROUNDS = 50


def noise_share(noise: Estimate) -> float:
    """How far from 1 the training against itself may lie, as a share: the far end of its interval.

    Example:
        >>> round(noise_share(Estimate(1.0, 0.98, 1.01, 0.95, 8, "")), 4)
        0.0204
    """
    if noise.low is None or noise.high is None:
        return 0.0
    return math.expm1(max(abs(math.log(noise.low)), abs(math.log(noise.high))))


def is_gain(ratio: Estimate, noise: Estimate) -> bool:
    """Whether the interval lies below 1, and the ratio beyond what the training differs from itself.

    Two processes of one training differ by more than their windows tell, as by how much memory glibc gives back where
    (`lightning_perf.page_faults`). The interval does not know of that; the training against itself does.
    """
    if ratio.value is None or ratio.high is None:
        return False
    return ratio.high < 1 and ratio.value < 1 / (1 + noise_share(noise))


def is_loss(ratio: Estimate, noise: Estimate) -> bool:
    """The same in the other direction."""
    if ratio.value is None or ratio.low is None:
        return False
    return ratio.low > 1 and ratio.value > 1 + noise_share(noise)
