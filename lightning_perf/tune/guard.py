"""Whether a lever leaves the training the same: its losses against what another seed does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightning_perf.compare.statistics.distributions import t_quantile

__all__ = ["loss_of", "moved"]

RELATIVE_FLOOR = 0.002
"""Share of the loss that always passes: seeds may happen to agree."""


def loss_of(losses: Sequence[float], count: int) -> float:
    """Mean loss of the later half of the first steps.

    Args:
        losses: A loss an optimizer step.
        count: Steps to look at, the same for all that are compared.

    Example:
        >>> loss_of([9.0, 9.0, 1.0, 3.0, 100.0], 4)
        2.0
    """
    return float(np.mean(losses[count // 2 : count]))


def moved(candidate: float, base: float, seeds: Sequence[float]) -> str | None:
    """Say how a lever moved the loss, or None when no further than seeds do.

    The candidate has the seed of the base: without rounding both would be equal, and rounding alone can part them no
    further than two seeds are apart. The limit is the 95 % interval of a difference of two seeds: Student's t for so
    many seeds times their standard deviation times √2.

    Args:
        candidate: Loss with the lever.
        base: Loss without, by the same seed.
        seeds: Losses without, by several seeds.

    Example:
        >>> moved(2.7, 2.0, [2.0, 2.1, 1.9])
        'the loss goes from 2 to 2.7; other seeds move it by 0.608 at most'
        >>> moved(2.1, 2.0, [2.0, 2.1, 1.9]) is None
        True
    """
    if not math.isfinite(base):
        return None  # the training itself goes astray: nothing to compare with
    if not math.isfinite(candidate):
        return f"the loss is {candidate}"
    reach = 0.0
    if len(seeds) > 1:
        reach = t_quantile(0.975, len(seeds) - 1) * math.sqrt(2) * float(np.std(seeds, ddof=1))
    limit = max(reach, RELATIVE_FLOOR * abs(base))
    if abs(candidate - base) <= limit:
        return None
    return f"the loss goes from {base:.3g} to {candidate:.3g}; other seeds move it by {limit:.3g} at most"
