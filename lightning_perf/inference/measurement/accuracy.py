"""Compare the accuracy of a variant with the original's, on real data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Accuracy", "compare_accuracy", "wilson_interval"]

Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a variant, and its agreement with the original.

    Attributes:
        correct: Number of correct answers.
        n: Number of inputs.
        units: Number of independent inputs, for the intervals.
        low: Lower end of the 95 % Wilson interval of the accuracy, 0 to 1.
        high: Upper end of that interval.
        agreement: Share of the inputs for which variant and original give the same class.
        drop_points: Accuracy of the original minus the accuracy of the variant, in percentage points.
        drop_low_points: Lower end of the 95 % interval of the drop; None for the original itself.
        drop_high_points: Upper end of that interval.
    """

    correct: int
    n: int
    units: int
    low: float
    high: float
    agreement: float
    drop_points: float
    drop_low_points: float | None
    drop_high_points: float | None

    @property
    def share(self) -> float:
        """Share of correct answers, 0 to 1."""
        return self.correct / self.n


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % score interval of a proportion (Wilson, J. Am. Stat. Assoc. 22, 1927).

    Args:
        share: The observed share, 0 to 1.
        n: Number of independent trials, at least 1.

    Example:
        >>> tuple(round(end, 3) for end in wilson_interval(0.9, 100))
        (0.826, 0.945)
    """
    denominator = 1 + Z95**2 / n
    centre = (share + Z95**2 / (2 * n)) / denominator
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def compare_accuracy(
    predicted: NDArray[np.int64],
    original: NDArray[np.int64],
    labels: NDArray[np.int64],
    units: int | None = None,
    *,
    is_original: bool = False,
) -> Accuracy:
    """Count a variant's correct answers and compare them with the original's.

    Both classify the same inputs, so the drop is a difference of paired proportions. Its interval is the adjusted Wald
    interval of Bonett & Price (J. Educ. Behav. Stat. 37, 2012). It depends on the inputs that only one of the two gets
    right.

    Args:
        predicted: The variant's class index for each input, ``(n,)``.
        original: The original's class index for each input, ``(n,)``.
        labels: The true class indices, ``(n,)``.
        units: Number of independent inputs; all of them if not given.
        is_original: Whether the variant is the original.
    """
    n = len(labels)
    trials = n if units is None else units
    right, base = predicted == labels, original == labels
    correct = int(right.sum())
    low, high = wilson_interval(correct / n, trials)
    drop_low = drop_high = None
    if not is_original:
        lost = trials * float((base & ~right).mean())
        won = trials * float((right & ~base).mean())
        drop_low, drop_high = _paired_interval(lost, won, trials)
    return Accuracy(
        correct=correct,
        n=n,
        units=trials,
        low=low,
        high=high,
        agreement=float((predicted == original).mean()),
        drop_points=100 * (int(base.sum()) - correct) / n,
        drop_low_points=drop_low,
        drop_high_points=drop_high,
    )


def _paired_interval(lost: float, won: float, n: int) -> tuple[float, float]:
    first, second = (lost + 1) / (n + 2), (won + 1) / (n + 2)
    half = Z95 * math.sqrt(max(0.0, first + second - (first - second) ** 2) / (n + 2))
    return 100 * max(-1.0, first - second - half), 100 * min(1.0, first - second + half)
