"""How many copies of a capture follow each other, when the numbering does not say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["infer_copies"]

_CLEAR_DROP = 0.1
"""How much less alike pictures must be across captures than within one; rotated copies correlate above 0.9."""


def infer_copies(pictures: NDArray[np.uint8], labels: Sequence[str], numbers: Sequence[int]) -> int | None:
    """Find the length of a capture from where consecutive pictures stop to look alike.

    Args:
        pictures: ``(n, height, width)`` grey values.
        labels: The label of each.
        numbers: The number of each within its label.

    Returns:
        The number of copies of each capture, or None when no number of them is clearly right.
    """
    rows = {(label, number): row for row, (label, number) in enumerate(zip(labels, numbers, strict=True))}
    pairs = [(row, rows[label, n + 1], n + 1) for (label, n), row in rows.items() if (label, n + 1) in rows]
    if not pairs:
        return None
    alike = np.array([_correlation(pictures[a], pictures[b]) for a, b, _ in pairs])
    begins = np.array([number for _, _, number in pairs])
    drops = {}
    for copies in range(2, int(begins.max()) + 1):
        across = begins % copies == 0
        if across.any() and not across.all():
            drops[copies] = float(alike[~across].mean() - alike[across].mean())
    best = max(drops, key=lambda copies: drops[copies], default=0)
    return best if drops.get(best, 0.0) > _CLEAR_DROP else None


def _correlation(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Pearson's r of the grey values; 1 for two pictures of one grey."""
    x, y = a.ravel() - a.mean(), b.ravel() - b.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 1.0
