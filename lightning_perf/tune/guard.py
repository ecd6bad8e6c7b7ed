"""Whether a lever leaves the training the same: its losses against what another seed does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["SEED_FACTOR", "loss_of", "moved"]

SEED_FACTOR = 3.0
"""Standard errors of a difference of two seeds that a lever may move the loss."""
RELATIVE_FLOOR = 0.002
"""Share of the loss that always passes: seeds may happen to agree."""


def loss_of(losses: Sequence[float], count: int) -> float:
    """Mean loss of the later half of the first batches.

    Args:
        losses: A loss a batch.
        count: Batches to look at, the same for all that are compared.

    Example:
        >>> loss_of([9.0, 9.0, 1.0, 3.0, 100.0], 4)
        2.0
    """
    return float(np.mean(losses[count // 2 : count]))


def moved(candidate: float, base: float, seeds: Sequence[float]) -> str | None:
    """Say how a lever moved the loss, or None when no further than seeds do.

    The candidate has the seed of the base, so without rounding both would be equal. The limit is `SEED_FACTOR` times
    the standard deviation over seeds times √2 (a difference of two).

    Args:
        candidate: Loss with the lever.
        base: Loss without, by the same seed.
        seeds: Losses without, by several seeds.

    Example:
        >>> moved(2.6, 2.0, [2.0, 2.1, 1.9])
        'the loss moves by 0.6 (from 2 to 2.6), and other seeds move it by 0.424 at most'
        >>> moved(2.1, 2.0, [2.0, 2.1, 1.9]) is None
        True
    """
    if not math.isfinite(candidate):
        return f"the loss is {candidate}"
    spread = float(np.std(seeds, ddof=1)) if len(seeds) > 1 else 0.0
    limit = max(SEED_FACTOR * math.sqrt(2) * spread, RELATIVE_FLOOR * abs(base))
    if abs(candidate - base) <= limit:
        return None
    return (
        f"the loss moves by {abs(candidate - base):.3g} (from {base:.3g} to {candidate:.3g}), "
        f"and other seeds move it by {limit:.3g} at most"
    )
