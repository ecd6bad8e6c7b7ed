"""Whether a lever leaves the training the same: its losses against what another seed does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightning_perf.statistics.distributions import t_quantile

__all__ = ["LossGuard", "loss_of", "moved"]

RELATIVE_FLOOR = 0.002
"""Share of the loss that always passes: seeds may happen to agree."""


class LossGuard:
    """The losses of the training as it is, by several seeds: how far a lever may move them.

    Args:
        base: A loss an optimizer step, by the seed that levers are tried with.
        others: The same by other seeds.
    """

    def __init__(self, base: Sequence[float], *others: Sequence[float]) -> None:
        self._base, self._others = tuple(base), tuple(tuple(losses) for losses in others)

    def note(self) -> str | None:
        """What a reader must know of the guard, or None."""
        count = min(map(len, (self._base, *self._others)))
        if not count:
            return "The training returns no loss, so nothing guards the numerics of what is kept."
        base, *others = (loss_of(losses, count) for losses in (self._base, *self._others))
        if not math.isfinite(base) or not all(map(math.isfinite, others)):
            return "The loss of the training as it is is no number, so nothing guards the numerics of what is kept."
        if _reach([base, *others]) < RELATIVE_FLOOR * abs(base):
            return (
                f"Other seeds hardly change the loss: a lever is rejected when it moves it by {RELATIVE_FLOOR:.1%}. "
                "Weights that a function makes, or a shuffled loader, would tell what the noise of the training is."
            )
        return None

    def harm(self, losses: Sequence[float]) -> str | None:
        """Say how a lever moved the loss, or None when no further than seeds do.

        Args:
            losses: A loss an optimizer step, with the lever, by the seed of the base.
        """
        count = min(map(len, (self._base, *self._others, losses)))
        if not count:
            return None
        base = loss_of(self._base, count)
        return moved(loss_of(losses, count), base, [base, *(loss_of(other, count) for other in self._others)])


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
    if not math.isfinite(base) or not all(map(math.isfinite, seeds)):
        return None  # the training itself goes astray: nothing to compare with
    if not math.isfinite(candidate):
        return f"the loss is {candidate}"
    reach, floor = _reach(seeds), RELATIVE_FLOOR * abs(base)
    if abs(candidate - base) <= max(reach, floor):
        return None
    seen = f"{reach:.3g} at most" if reach >= floor else f"less than {floor:.3g}"
    return f"the loss goes from {base:.4g} to {candidate:.4g}; other seeds move it by {seen}"


def _reach(seeds: Sequence[float]) -> float:
    """How far apart two seeds may be: the 95 % interval of their difference."""
    if len(seeds) < 2:
        return 0.0
    return t_quantile(0.975, len(seeds) - 1) * math.sqrt(2) * float(np.std(seeds, ddof=1))
