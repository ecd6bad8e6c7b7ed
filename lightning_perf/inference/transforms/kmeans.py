"""k-means of numbers: the few values that stand best for many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["cluster"]

MOST_ROUNDS = 300
"""Lloyd's rounds at most; millions of weights and 32 values settle within about a hundred."""


def cluster(values: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Find k numbers with a small sum of squared distances from the values to their nearest one.

    Lloyd's algorithm (Lloyd 1982, doi:10.1109/TIT.1982.1056489) from the values' quantiles: deterministic, and on one
    axis a round takes k look-ups, since each cluster is a run of the sorted values.

    Args:
        values: Finite numbers, ``(n,)``.
        k: How many to find, at least 1.

    Returns:
        The numbers, ascending, at most k of them, and for each value the index of its nearest one.

    Example:
        >>> codebook, indices = cluster(np.array([0.0, 0.1, 5.0, 5.2, 9.0], dtype=np.float32), 3)
        >>> [round(float(value), 2) for value in codebook], indices.tolist()
        ([0.05, 5.1, 9.0], [0, 0, 1, 1, 2])
    """
    ordered = np.sort(values).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    centres = np.unique(np.quantile(ordered, (np.arange(k) + 0.5) / k))
    for _ in range(MOST_ROUNDS):
        edges = np.searchsorted(ordered, (centres[:-1] + centres[1:]) / 2, side="right")
        bounds = np.concatenate([[0], edges, [len(ordered)]])
        counts = np.diff(bounds)
        filled = counts > 0
        moved = np.diff(sums[bounds])[filled] / counts[filled]
        if np.array_equal(moved, centres):
            break
        centres = moved
    codebook = np.unique(centres.astype(np.float32))
    # In single precision and with the same rule, so that each value gets the nearest number as it is stored.
    middles = (codebook[:-1].astype(np.float64) + codebook[1:].astype(np.float64)) / 2
    return codebook, np.searchsorted(middles, values.astype(np.float64), side="left")
