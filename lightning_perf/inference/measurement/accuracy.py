"""Accuracy of a variant on real data, beside the original's."""

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
    """How often a variant is right, and how often it says what the original says.

    Attributes:
        correct: Right answers.
        n: Inputs.
        units: Independent trials behind the intervals.
        low: Lower end of the share's 95 % Wilson interval, 0 to 1.
        high: Upper end.
        agreement: Share of the inputs for which the original gives the same class.
        drop_points: Accuracy of the original less this one's, in percentage points.
        drop_low_points: Lower end of the drop's 95 % interval; None for the original itself.
        drop_high_points: Upper end.
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
        """Share of right answers, 0 to 1."""
        return self.correct / self.n


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson, J. Am. Stat. Assoc. 22, 1927).

    Args:
        share: The share seen, 0 to 1.
        n: Independent trials, at least 1.

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
    """Count a variant's right answers and set them beside the original's.

    Both saw the same inputs, so the drop is a difference of paired proportions. Its interval is the adjusted Wald one
    of Bonett & Price (J. Educ. Behav. Stat. 37, 2012), which rests on the inputs that only one of them got right.

    Args:
        predicted: Class index that the variant gives each input, ``(n,)``.
        original: The same of the original.
        labels: The right ones.
        units: Independent trials among the inputs; as many as inputs when not given.
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
